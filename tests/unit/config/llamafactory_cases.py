"""Generated files of LLaMA-Factory, and what each of our settings must be by its own parsed arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swift_cases import SKIPPED, idle_warmup

Resolved = Mapping[str, Any]
_COMMON: dict[str, tuple[object, ...]] = {
    "finetuning_type": ("lora", "full"),
    "bf16": (True, False),
    "fp16": (True,),
    "cutoff_len": (64, 256),
    "learning_rate": (1e-4, 5e-6),
    "weight_decay": (0.1, 0.01),
    "adam_beta2": (0.95, 0.99),
    "warmup_ratio": (0.05, 0.1),
    "warmup_steps": (10,),
    "lr_scheduler_type": ("cosine", "constant"),
    "num_train_epochs": (1, 2),
    "max_steps": (7,),
    "per_device_train_batch_size": (1, 2),
    "gradient_accumulation_steps": (2, 4),
    "disable_gradient_checkpointing": (True,),
    "max_grad_norm": (0.5,),
    "seed": (7,),
    "lora_rank": (4, 16),
    "lora_alpha": (8, 64),
    "lora_dropout": (0.1,),
    "lora_target": ("all", "q_proj,v_proj"),
    "use_rslora": (True,),
    "additional_target": ("embed_tokens",),
    "packing": (True, False),
    "max_samples": (5,),
    "val_size": (0.1,),
    "eval_strategy": ("steps", "no"),
    "eval_steps": (20,),
    "save_steps": (50,),
    "save_strategy": ("epoch", "no"),
    "save_total_limit": (2,),
    "optim": ("adamw_torch", "sgd"),
    "use_dora": (True,),
    "moe_aux_loss_coef": (0.01,),
    "use_muon": (True,),
    "label_smoothing_factor": (0.1,),
    "neftune_noise_alpha": (5,),
    "disable_shuffling": (True,),
    "early_stopping_steps": (3,),
}
_PAIRS: dict[str, tuple[object, ...]] = {
    "pref_beta": (0.3,),
    "pref_loss": ("sigmoid", "hinge", "ipo", "orpo", "simpo"),
    "pref_ftx": (0.5,),
    "dpo_label_smoothing": (0.1,),
    "simpo_gamma": (0.7,),
    "ld_alpha": (0.5,),
}
_OF: dict[str, dict[str, tuple[object, ...]]] = {
    "sft": {"neat_packing": (True,), "train_on_prompt": (True,), "mask_history": (True,)},
    "pt": {},
    "rm": {},
    "dpo": _PAIRS,
    "kto": {
        "pref_beta": (0.3,),
        "pref_ftx": (0.5,),
        "kto_chosen_weight": (0.8,),
        "kto_rejected_weight": (1.2,),
    },
    "ppo": {
        "ppo_epochs": (2,),
        "ppo_target": (5.0,),
        "ppo_whiten_rewards": (True,),
        "max_new_tokens": (64,),
        "temperature": (0.7,),
        "top_p": (0.9,),
        "top_k": (20,),
    },
}


def files(folder: Path, count: int) -> list[dict[str, object]]:
    """Return ``count`` seeded files over every stage."""
    draw = random.Random(95)
    found: list[dict[str, object]] = []
    for number in range(count):
        stage = list(_OF)[number % len(_OF)]
        own = {**_COMMON, **_OF[stage]}
        given: dict[str, object] = {
            key: draw.choice(values) for key, values in own.items() if draw.random() < 0.2
        }
        if given.get("finetuning_type") == "full":
            given = {key: value for key, value in given.items() if key not in ("use_rslora", "use_dora")}
        if given.get("eval_strategy") == "steps":
            given |= {"val_size": 0.1}
        given |= {
            "stage": stage,
            "do_train": True,
            "template": "qwen",
            "model_name_or_path": str(folder / "bfloat16"),
        }
        given |= {"dataset": "rows", "dataset_dir": str(folder)}
        if stage == "ppo":
            given |= {"reward_model": str(folder / "bfloat16"), "reward_model_type": "full"}
        found.append(given)
    return found


def _only(
    when: Callable[[Resolved], bool], value: Callable[[Resolved], object]
) -> Callable[[Resolved], object]:
    return lambda a: value(a) if when(a) else SKIPPED


def _algorithm(a: Resolved) -> str:
    if a["stage"] == "dpo" and a["pref_loss"] in ("orpo", "simpo"):
        return str(a["pref_loss"])
    return {"pt": "sft", "rm": "reward"}.get(a["stage"], str(a["stage"]))


def _precision(a: Resolved) -> str:
    return "fp16" if a["fp16"] else "bf16" if a["bf16"] or a["pure_bf16"] else "no"


def _lora(key: str) -> Callable[[Resolved], object]:
    return _only(lambda a: a["finetuning_type"] == "lora", lambda a: a[key])


def _of(algorithms: tuple[str, ...], key: str) -> Callable[[Resolved], object]:
    return _only(lambda a: _algorithm(a) in algorithms, lambda a: a[key])


_PLAIN = (
    *(
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "num_train_epochs",
        "max_steps",
    ),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "seed", "save_strategy"),
    *("save_total_limit", "warmup_steps", "lr_scheduler_type"),
)
TABLE: dict[str, tuple[tuple[str, ...], Callable[[Resolved], object]]] = {
    **{f"training.{key}": ((key,), lambda a, key=key: a[key]) for key in _PLAIN},
    "training.optim": (("optim", "use_muon"), lambda a: "muon" if a["use_muon"] else a["optim"]),
    "training.warmup_steps": (
        ("warmup_ratio",),
        _only(
            lambda a: not idle_warmup(a["lr_scheduler_type"]),
            lambda a: a["warmup_steps"] or a.get("warmup_ratio") or 0,
        ),
    ),
    "training.algorithm": (("stage",), _algorithm),
    "training.mixed_precision": (("pure_bf16",), _precision),
    "training.pure_bf16": (
        ("pure_bf16",),
        _only(lambda a: a["finetuning_type"] == "full", lambda a: a["pure_bf16"]),
    ),
    "training.gradient_checkpointing": ((), lambda a: not a["disable_gradient_checkpointing"]),
    "training.router_aux_loss_coef": ((), lambda a: a["moe_aux_loss_coef"]),
    "training.eval_strategy": ((), lambda a: a["eval_strategy"]),
    "training.early_stopping_patience": (("early_stopping_steps",), lambda a: a["early_stopping_steps"]),
    "data.max_length": (
        ("cutoff_len",),
        lambda a: (a["cutoff_len"] + 1) // 2 * 2,
    ),  # LLaMA-Factory takes one off for packing
    "data.packing": (("packing",), lambda a: a["packing"]),
    "data.train_on": (
        ("train_on_prompt", "mask_history"),
        _only(
            lambda a: _algorithm(a) == "sft",
            lambda a: (
                "last"
                if a["mask_history"]
                else "all"
                if a["train_on_prompt"] or a["stage"] == "pt"
                else "assistant"
            ),
        ),
    ),
    "data.validation_split": (("val_size",), lambda a: a["val_size"] or None),
    "lora.r": ((), _lora("lora_rank")),
    "lora.alpha": ((), _lora("lora_alpha")),
    "lora.dropout": ((), _lora("lora_dropout")),
    "lora.use_rslora": ((), _lora("use_rslora")),
    "lora.modules_to_save": (
        (),
        _only(lambda a: a["finetuning_type"] == "lora", lambda a: a["additional_target"] or []),
    ),
    "lora.target_modules": (
        (),
        _only(
            lambda a: a["finetuning_type"] == "lora",
            lambda a: ["all-linear"] if a["lora_target"] == ["all"] else a["lora_target"],
        ),
    ),
    **{f"training.{name}.beta": ((), _of((name,), "pref_beta")) for name in ("dpo", "orpo", "simpo", "kto")},
    "training.dpo.loss_type": (("pref_loss",), _of(("dpo",), "pref_loss")),
    "training.dpo.label_smoothing": (("dpo_label_smoothing",), _of(("dpo",), "dpo_label_smoothing")),
    "training.dpo.rpo_alpha": (
        ("pref_ftx",),
        _only(lambda a: _algorithm(a) == "dpo", lambda a: a["pref_ftx"] or None),
    ),
    "training.sft_term": (
        ("pref_ftx",),
        _only(lambda a: _algorithm(a) in ("orpo", "simpo", "kto"), lambda a: a["pref_ftx"] or None),
    ),
    "training.ld_alpha": (("ld_alpha",), _only(lambda a: a["stage"] == "dpo", lambda a: a["ld_alpha"])),
    "lora.quantization_bit": (("quantization_bit",), lambda a: a["quantization_bit"]),
    "training.simpo.simpo_gamma": ((), _of(("simpo",), "simpo_gamma")),
    "training.kto.desirable_weight": ((), _of(("kto",), "kto_chosen_weight")),
    "training.kto.undesirable_weight": ((), _of(("kto",), "kto_rejected_weight")),
    "training.ppo.num_ppo_epochs": ((), _of(("ppo",), "ppo_epochs")),
    "training.ppo.target": ((), _of(("ppo",), "ppo_target")),
    "training.ppo.whiten_rewards": ((), _of(("ppo",), "ppo_whiten_rewards")),
    "training.rollout.max_completion_length": ((), _of(("ppo",), "max_new_tokens")),
    "training.rollout.temperature": ((), _of(("ppo",), "temperature")),
    "training.rollout.top_p": ((), _of(("ppo",), "top_p")),
    "training.rollout.top_k": ((), _of(("ppo",), "top_k")),
}
