"""Generated files of TRL, and what each of our settings must be by its own parsed arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swift_cases import only

Resolved = Mapping[str, Any]
_COMMON: dict[str, tuple[object, ...]] = {
    "learning_rate": (1e-4, "5e-6"),
    "weight_decay": (0.1,),
    "adam_beta2": (0.95,),
    "warmup_steps": (10, 0.1),
    "lr_scheduler_type": ("cosine", "constant_with_warmup"),
    "num_train_epochs": (1, 2),
    "max_steps": (7,),
    "per_device_train_batch_size": (4,),
    "gradient_accumulation_steps": (2, 4),
    "gradient_checkpointing": (False,),
    "max_grad_norm": (0.5, 0),
    "seed": (7,),
    "data_seed": (8,),
    "bf16": (True, False),
    "fp16": (True,),
    "dtype": ("bfloat16", "auto", "float32"),
    "optim": ("adamw_torch", "sgd"),
    "eval_strategy": ("steps", "epoch", "no"),
    "eval_steps": (20,),
    "logging_steps": (5,),
    "save_strategy": ("epoch", "no"),
    "save_steps": (50,),
    "save_total_limit": (2,),
    "use_peft": (True,),
    "lora_r": (4,),
    "lora_alpha": (8,),
    "lora_dropout": (0.1,),
    "lora_target_modules": ("all-linear", ["q_proj", "o_proj"]),
    "lora_modules_to_save": (["embed_tokens"],),
    "use_rslora": (True,),
    "use_dora": (True,),
    "load_in_4bit": (True,),
    "use_bnb_nested_quant": (True,),
    "disable_dropout": (True, False),
    "max_length": (64, None),
    "truncation_mode": ("keep_start", "keep_end"),
    "shuffle_dataset": (True, False),
    "average_tokens_across_devices": (False,),
    "label_smoothing_factor": (0.1,),
    "neftune_noise_alpha": (5,),
    "dataloader_drop_last": (True,),
    "pad_to_multiple_of": (8,),
    "train_sampling_strategy": ("sequential", "group_by_length"),
}
_ROLLOUT: dict[str, tuple[object, ...]] = {
    "num_generations": (4,),
    "max_completion_length": (64, None),
    "temperature": (0.7,),
    "top_p": (0.9,),
    "top_k": (20,),
    "min_p": (0.1,),
    "repetition_penalty": (1.1,),
    "beta": (0.01,),
    "epsilon": (0.1,),
    "epsilon_high": (0.3,),
    "num_iterations": (2,),
    "steps_per_generation": (4,),
    "mask_truncated_completions": (True,),
    "sync_ref_model": (True,),
    "use_vllm": (True,),
}
_OF: dict[str, dict[str, tuple[object, ...]]] = {
    "sft": {
        "packing": (True,),
        "packing_strategy": ("bfd", "bfd_split", "wrapped"),
        "assistant_only_loss": (True,),
        "completion_only_loss": (True, False),
        "loss_type": ("nll", "dft"),
        "router_aux_loss_coef": (0.01,),
    },
    "dpo": {
        "beta": (0.3,),
        "loss_type": ("sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", ["sigmoid", "sft"]),
        "label_smoothing": (0.1,),
        "precompute_ref_log_probs": (True,),
        "sync_ref_model": (True,),
        "ld_alpha": (0.5,),
        "use_weighting": (True,),
        "f_divergence_type": ("reverse_kl", "js_divergence"),
    },
    "kto": {
        "beta": (0.3,),
        "loss_type": ("kto", "apo_zero_unpaired"),
        "desirable_weight": (0.8,),
        "undesirable_weight": (1.2,),
    },
    "reward": {"center_rewards_coefficient": (0.01,)},
    "grpo": {
        **_ROLLOUT,
        "loss_type": ("grpo", "dr_grpo", "bnpo", "cispo", "sapo"),
        "scale_rewards": ("batch", False),
        "delta": (1.5,),
        "importance_sampling_level": ("sequence",),
        "use_bias_correction_kl": (False,),
        "top_entropy_quantile": (0.2,),
        "entropy_coef": (0.01,),
    },
    "rloo": {**_ROLLOUT, "normalize_advantages": (True,), "reward_clip_range": ([-1.0, 1.0],)},
}
#: keys that not every trainer has
_ONLY = {
    "max_length": ("sft", "dpo", "kto", "reward"),
    "truncation_mode": ("sft", "dpo"),
    "disable_dropout": ("dpo", "kto", "reward", "grpo", "rloo"),
    "pad_to_multiple_of": ("sft", "dpo", "kto", "reward"),
    "shuffle_dataset": ("sft", "grpo", "rloo"),
}


def files(folder: Path, count: int) -> list[tuple[str, dict[str, object]]]:
    """Return each trainer's empty file, and ``count`` seeded ones over all trainers."""
    draw = random.Random(116)
    rows = {"model_name_or_path": "m", "dataset_name": str(folder / "rows.jsonl")}
    found: list[tuple[str, dict[str, object]]] = [(trainer, dict(rows)) for trainer in _OF]
    for number in range(count):
        trainer = list(_OF)[number % len(_OF)]
        own = {**_COMMON, **_OF[trainer]}
        own = {key: values for key, values in own.items() if trainer in _ONLY.get(key, _OF)}
        given = {key: draw.choice(values) for key, values in own.items() if draw.random() < 0.15}
        found.append((trainer, {**rows, **given}))
    return found


def _of(trainers: tuple[str, ...], key: str) -> Callable[[Resolved], object]:
    return only(lambda a: a["trainer"] in trainers, lambda a: a[key])


def _lora(value: Callable[[Resolved], object]) -> Callable[[Resolved], object]:
    return only(lambda a: a["use_peft"] and not a["load_in_4bit"], value)


def _listed(a: Resolved) -> list[str]:
    return a["loss_type"] if isinstance(a["loss_type"], list) else [a["loss_type"]]


_ON_POLICY = ("grpo", "rloo")
_PLAIN = (
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "num_train_epochs"),
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "seed"),
    *("save_strategy", "save_total_limit", "warmup_steps", "lr_scheduler_type", "optim", "data_seed"),
    *("gradient_checkpointing", "eval_strategy", "dataloader_drop_last", "per_device_eval_batch_size"),
    "logging_steps",
)

#: our path → (TRL's keys whose verdict may excuse a difference, what its arguments make of it)
TABLE: dict[str, tuple[tuple[str, ...], Callable[[Resolved], object]]] = {
    **{f"training.{key}": ((), lambda a, key=key: a[key]) for key in _PLAIN},
    "training.algorithm": ((), lambda a: a["trainer"]),
    "training.mixed_precision": ((), lambda a: "fp16" if a["fp16"] else "bf16" if a["bf16"] else "no"),
    "training.eval_steps": (
        (),
        only(
            lambda a: a["eval_strategy"] == "steps" and a["eval_steps"] != a["logging_steps"],
            lambda a: a["eval_steps"],
        ),
    ),
    "training.save_steps": ((), only(lambda a: a["save_strategy"] == "steps", lambda a: a["save_steps"])),
    "training.disable_dropout": (
        (),
        lambda a: a.get("disable_dropout", False),
    ),
    "training.pure_bf16": (
        ("dtype",),
        only(lambda a: not a["use_peft"], lambda a: a["dtype"] == "bfloat16"),
    ),
    "training.average_tokens": (
        ("average_tokens_across_devices",),
        lambda a: None if a["average_tokens_across_devices"] else False,
    ),
    "training.label_smoothing": (("label_smoothing_factor",), lambda a: a["label_smoothing_factor"] or None),
    "training.neftune": (("neftune_noise_alpha",), lambda a: a["neftune_noise_alpha"]),
    "data.max_length": (
        ("max_length",),
        only(lambda a: a["trainer"] not in _ON_POLICY, lambda a: a["max_length"]),
    ),
    "data.end": (
        ("truncation_mode",),
        only(
            lambda a: a.get("max_length"),
            lambda a: None if a.get("truncation_mode", "keep_start") == "keep_start" else "end",
        ),
    ),
    "data.packing": ((), lambda a: a.get("packing", False)),
    "data.split": (
        ("packing_strategy",),
        only(
            lambda a: a.get("packing"),
            lambda a: None if a["packing_strategy"] == "bfd" else a["packing_strategy"],
        ),
    ),
    "data.train_on": (
        (),
        only(
            lambda a: a["trainer"] == "sft",
            lambda a: "assistant" if a["assistant_only_loss"] or a["completion_only_loss"] else "all",
        ),
    ),
    "training.sft.loss_type": (
        ("loss_type",),
        only(lambda a: a["trainer"] == "sft", lambda a: "nll" if "nll" in a["loss_type"] else a["loss_type"]),
    ),
    "data.seq": (
        ("train_sampling_strategy", "shuffle_dataset"),
        lambda a: (
            None
            if a["train_sampling_strategy"] == "random" or a["trainer"] == "kto"
            else a["train_sampling_strategy"]
        ),
    ),
    "lora.r": ((), _lora(lambda a: a["lora_r"])),
    "lora.alpha": ((), _lora(lambda a: a["lora_alpha"])),
    "lora.dropout": ((), _lora(lambda a: a["lora_dropout"])),
    "lora.use_rslora": ((), _lora(lambda a: a["use_rslora"])),
    "lora.use_dora": ((), _lora(lambda a: a["use_dora"])),
    "lora.target_modules": (
        (),
        _lora(
            lambda a: (
                [a["lora_target_modules"]]
                if isinstance(a["lora_target_modules"], str)
                else a["lora_target_modules"] or ["q_proj", "v_proj"]
            )
        ),
    ),
    "lora.modules_to_save": ((), _lora(lambda a: a["lora_modules_to_save"] or [])),
    # TRL trains no quantised weights without an adapter
    "lora.quantization_bit": (
        ("load_in_4bit",),
        lambda a: (4 if a["use_peft"] else "none") if a["load_in_4bit"] else None,
    ),
    "lora": ((), only(lambda a: not a["use_peft"], lambda a: None)),
    **{
        f"training.{name}.{key}": ((key,), _of((name,), key))
        for name, keys in {
            "dpo": ("beta", "precompute_ref_log_probs"),
            "kto": ("beta", "loss_type", "desirable_weight", "undesirable_weight"),
            "grpo": (
                *("beta", "epsilon", "epsilon_high", "loss_type", "num_iterations", "delta"),
                *("importance_sampling_level", "mask_truncated_completions", "use_bias_correction_kl"),
            ),
            "rloo": (
                *("beta", "epsilon", "epsilon_high", "num_iterations", "normalize_advantages"),
                "mask_truncated_completions",
            ),
        }.items()
        for key in keys
    },
    "training.dpo.loss_type": (
        ("loss_type",),
        only(lambda a: a["trainer"] == "dpo", lambda a: _listed(a)[0].removesuffix("_norm")),
    ),
    "training.dpo.length_normalized": (
        ("loss_type",),
        only(lambda a: a["trainer"] == "dpo", lambda a: _listed(a) in (["ipo"], ["sigmoid_norm"])),
    ),
    "training.dpo.label_smoothing": (
        (),
        only(lambda a: a["trainer"] == "dpo" and _listed(a) == ["robust"], lambda a: a["label_smoothing"]),
    ),
    **{
        f"training.dpo.{key}": (
            (key,),
            only(
                lambda a: a["trainer"] == "dpo", lambda a, key=key, off=off: None if a[key] in off else a[key]
            ),
        )
        for key, off in {
            "ld_alpha": (None,),
            "use_weighting": (False,),
            "f_divergence_type": ("reverse_kl",),
            "sync_ref_model": (False,),
        }.items()
    },
    "training.reward.center_rewards_coefficient": (
        (),
        only(lambda a: a["trainer"] == "reward", lambda a: a["center_rewards_coefficient"] or 0.0),
    ),
    "training.grpo.scale_rewards": (
        (),
        only(
            lambda a: a["trainer"] == "grpo",
            lambda a: a["scale_rewards"] if a["scale_rewards"] != "False" else "none",
        ),
    ),
    "training.rloo.reward_clip_range": (("reward_clip_range",), _of(("rloo",), "reward_clip_range")),
    **{
        f"training.rollout.{key}": ((), _of(_ON_POLICY, key))
        for key in ("num_generations", "temperature", "top_p", "top_k")
    },
    "training.rollout.max_completion_length": (
        ("max_completion_length",),
        _of(_ON_POLICY, "max_completion_length"),
    ),
    "training.rollout.steps_per_generation": (
        (),
        only(
            lambda a: (
                a["trainer"] in _ON_POLICY and a["steps_per_generation"] != a["gradient_accumulation_steps"]
            ),
            lambda a: a["steps_per_generation"],
        ),
    ),
    **{
        f"training.rollout.{key}": (
            (key,),
            only(
                lambda a, key=key: a["trainer"] in _ON_POLICY and key in a,
                lambda a, key=key, off=off: None if a[key] in off else a[key],
            ),
        )
        for key, off in {
            "min_p": (None,),
            "repetition_penalty": (1.0,),
            "sync_ref_model": (False,),
            "top_entropy_quantile": (1.0,),
            "entropy_coef": (0.0, None),
        }.items()
    },
}
