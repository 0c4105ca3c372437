"""Generated commands of ms-swift, and what each of our settings must be by its own resolved arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Resolved = Mapping[str, Any]
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 512}
MODEL |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
MODEL |= {"num_key_value_heads": 2, "vocab_size": 128}
DTYPES = ("bfloat16", "float16", "float32")

_COMMON: dict[str, tuple[object, ...]] = {
    "tuner_type": ("lora", "full"),
    "torch_dtype": DTYPES,
    "max_length": (64, 256),
    "learning_rate": (1e-4, 5e-6),
    "weight_decay": (0.0, 0.1, 0.01),
    "adam_beta2": (0.95, 0.99),
    "warmup_ratio": (0.05, 0.1),
    "lr_scheduler_type": ("cosine", "linear", "constant"),
    "num_train_epochs": (1, 2),
    "per_device_train_batch_size": (1, 2, 3, 4),
    "gradient_accumulation_steps": (1, 4),
    "gradient_checkpointing": ("true", "false"),
    "max_grad_norm": (0.5, 1.0),
    "seed": (7, 42),
    "data_seed": (11,),
    "lora_rank": (4, 16),
    "lora_alpha": (8, 32),
    "lora_dropout": (0.0, 0.1),
    "lora_bias": ("none", "all"),
    "use_rslora": ("true",),
    "target_modules": ("all-linear", "q_proj v_proj"),
    "modules_to_save": ("embed_tokens",),
    "truncation_strategy": ("delete", "left", "right"),
    "split_dataset_ratio": (0.1,),
    "save_strategy": ("epoch", "steps", "no"),
    "save_steps": (50, 100),
    "save_total_limit": (2,),
    "eval_steps": (20,),
    "eval_strategy": ("no", "epoch", "steps"),
    "bf16": ("true", "false"),
    "router_aux_loss_coef": (0.01,),
    "strict": ("true",),
}
_SFT: dict[str, tuple[object, ...]] = {
    "loss_scale": ("default", "all", "last_round"),
    "use_chat_template": ("false",),
}
_RLHF: dict[str, tuple[object, ...]] = {"beta": (0.3,)}
_OF: dict[str, dict[str, tuple[object, ...]]] = {
    "dpo": {"loss_type": ("sigmoid", "hinge", "ipo"), "label_smoothing": (0.1,), "rpo_alpha": (0.5,)},
    "kto": {"desirable_weight": (0.8,), "undesirable_weight": (1.2,)},
    "cpo": {"loss_type": ("sigmoid", "hinge"), "cpo_alpha": (0.5,)},
    "simpo": {"simpo_gamma": (0.7,), "cpo_alpha": (0.0,)},
    "orpo": {},
    "rm": {"center_rewards_coefficient": (0.01,)},
    "grpo": {
        "num_generations": (2, 4),
        "max_completion_length": (128,),
        "max_new_tokens": (96,),
        "temperature": (1.0, 0.7),
        "top_p": (0.9,),
        "top_k": (20,),
        "epsilon": (0.1,),
        "epsilon_high": (0.28,),
        "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
        "scale_rewards": ("group", "batch", "none"),
        "num_iterations": (2,),
        "importance_sampling_level": ("token", "sequence"),
        "overlong_filter": ("true",),
        "dynamic_sample": ("true",),
        "generation_batch_size": (48, 96),
        "steps_per_generation": (8, 16),
        "delta": (1.5,),
    },
    "ppo": {
        "num_ppo_epochs": (2,),
        "kl_coef": (0.1,),
        "cliprange": (0.3,),
        "vf_coef": (0.2,),
        "cliprange_value": (0.3,),
        "gamma": (0.9,),
        "lam": (0.9,),
        "response_length": (64,),
        "temperature": (0.7,),
        "whiten_rewards": ("true",),
    },
}


def commands(folder: Path, count: int) -> list[list[str]]:
    """Return ``count`` seeded commands over every kind; ``folder`` holds models by dtype and the rows."""
    draw = random.Random(46)
    kinds = ["sft", "pt", *_OF]
    found: list[list[str]] = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        own = {**_COMMON, **(_SFT if kind in ("sft", "pt") else {**_RLHF, **_OF[kind]})}
        chosen = {key: draw.choice(values) for key, values in own.items() if draw.random() < 0.25}
        words = [kind] if kind in ("sft", "pt") else ["rlhf", "--rlhf_type", kind]
        words += ["--model", str(folder / draw.choice(DTYPES)), "--dataset", str(folder / "rows.jsonl")]
        words += ["--model_type", "llama", "--template", "chatml"]
        if kind == "grpo":  # whole groups
            chosen |= {"per_device_train_batch_size": 16}
        if kind == "ppo":
            words += ["--reward_model", str(folder / "bfloat16")]
        for key, value in chosen.items():
            words += [f"--{key}", *str(value).split()]
        found.append(words)
    return found


def _trainer(name: str) -> Callable[[Resolved], object]:
    return lambda a: a["training"].get(name, a.get(name))


def _precision(a: Resolved) -> str:
    return "fp16" if a["fp16"] else "bf16" if a["bf16"] else "no"


def _algorithm(a: Resolved) -> str:
    if a.get("rlhf_type") is None:
        return "sft"
    simpo = a["rlhf_type"] == "cpo" and a["loss_type"] == "simpo"
    return "simpo" if simpo else {"rm": "reward"}.get(a["rlhf_type"], a["rlhf_type"])


def _rollout(a: Resolved) -> bool:
    return a.get("rlhf_type") in ("grpo", "ppo")


def only(
    when: Callable[[Resolved], bool], value: Callable[[Resolved], object]
) -> Callable[[Resolved], object]:
    return lambda a: value(a) if when(a) else SKIPPED


def idle_warmup(schedule: object) -> bool:
    """Whether Transformers' schedule of this name ignores a warm-up."""
    return getattr(schedule, "value", schedule) == "constant"


SKIPPED = object()
_LORA = {
    "r": "lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "bias": "lora_bias",
    "use_rslora": "use_rslora",
}
_PLAIN = (
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "num_train_epochs"),
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"),
    *("learning_rate", "seed", "save_strategy", "save_total_limit", "router_aux_loss_coef", "eval_strategy"),
)

#: our path → (ms-swift's keys whose verdict may excuse a difference, what ms-swift's arguments make of it)
TABLE: dict[str, tuple[tuple[str, ...], Callable[[Resolved], object]]] = {
    **{f"training.{key}": ((key,), _trainer(key)) for key in _PLAIN},
    "training.algorithm": (("rlhf_type",), _algorithm),
    "training.mixed_precision": (("torch_dtype", "bf16", "fp16"), _precision),
    "training.pure_bf16": (
        ("torch_dtype",),
        lambda a: a["tuner_type"] == "full" and a["torch_dtype"] == "torch.bfloat16",
    ),
    "training.lr_scheduler_type": (
        (),
        lambda a: getattr(a["training"]["lr_scheduler_type"], "value", a["training"]["lr_scheduler_type"]),
    ),
    "training.data_seed": ((), lambda a: a["data_seed"]),
    "training.disable_dropout": ((), lambda a: bool(a["training"].get("disable_dropout"))),
    "training.save_steps": ((), only(lambda a: a["save_strategy"] == "steps", _trainer("save_steps"))),
    "training.eval_steps": (
        (),
        only(lambda a: a["training"]["eval_strategy"] == "steps", _trainer("eval_steps")),
    ),
    "training.warmup_steps": (
        (),
        lambda a: SKIPPED if idle_warmup(a["training"]["lr_scheduler_type"]) else _trainer("warmup_steps")(a),
    ),
    "data.max_length": (
        ("max_length",),
        lambda a: a["max_length"] + (a["max_completion_length"] if _rollout(a) else 0),
    ),
    "data.packing": ((), lambda a: a["packing"]),
    "data.train_on": (
        ("loss_scale",),
        only(
            lambda a: _algorithm(a) == "sft",
            lambda a: (
                "all"
                if a["loss_scale"].startswith("all")
                else "assistant"
                if a["loss_scale"].startswith("default")
                else "last"
            ),
        ),
    ),
    "data.on_too_long": (
        ("truncation_strategy",),
        lambda a: {"delete": "skip", "split": "other"}.get(a["truncation_strategy"], "truncate"),
    ),
    "data.truncation": ((), lambda a: "start" if a["truncation_strategy"] == "left" else "end"),
    "data.max_prompt_length": ((), lambda a: a["max_length"] if _rollout(a) else None),
    "data.on_bad_row": ((), lambda a: "refuse" if a["strict"] else "skip"),
    "data.validation_split": (
        (),
        lambda a: a["split_dataset_ratio"] or None,
    ),
    **{
        f"lora.{ours}": (
            (theirs,),
            only(lambda a: a["tuner_type"] == "lora", lambda a, theirs=theirs: a[theirs]),
        )
        for ours, theirs in _LORA.items()
    },
    "lora.target_modules": (
        ("target_modules",),
        only(lambda a: a["tuner_type"] == "lora", lambda a: a["target_modules"]),
    ),
    "lora.modules_to_save": ((), only(lambda a: a["tuner_type"] == "lora", lambda a: a["modules_to_save"])),
    **{
        f"training.{ours}.{option}": (
            (option,),
            only(lambda a, ours=ours: _algorithm(a) == ours, lambda a, option=option: a[option]),
        )
        for ours, options in {
            "dpo": ("beta", "loss_type", "rpo_alpha"),
            "kto": ("beta", "loss_type", "desirable_weight", "undesirable_weight"),
            "cpo": ("beta", "loss_type", "cpo_alpha", "label_smoothing"),
            "simpo": ("beta", "simpo_gamma", "cpo_alpha", "label_smoothing"),
            "orpo": ("beta",),
            "grpo": (
                "beta",
                "loss_type",
                "epsilon",
                "epsilon_high",
                "delta",
                "scale_rewards",
                "num_iterations",
                "importance_sampling_level",
            ),
            "ppo": (
                "num_ppo_epochs",
                "kl_coef",
                "cliprange",
                "vf_coef",
                "cliprange_value",
                "gamma",
                "lam",
                "whiten_rewards",
                "missing_eos_penalty",
            ),
        }.items()
        for option in options
    },
    "training.dpo.label_smoothing": (
        (),
        only(
            lambda a: _algorithm(a) == "dpo" and a["loss_type"] == "sigmoid", lambda a: a["label_smoothing"]
        ),
    ),
    "training.reward.center_rewards_coefficient": (
        (),
        only(lambda a: _algorithm(a) == "reward", lambda a: a["center_rewards_coefficient"] or 0.0),
    ),
    "training.grpo.mask_truncated_completions": (
        (),
        only(lambda a: _algorithm(a) == "grpo", lambda a: a["overlong_filter"]),
    ),
    "training.rollout.filter_groups": (
        (),
        only(lambda a: _algorithm(a) == "grpo", lambda a: a["dynamic_sample"]),
    ),
    "training.rollout.steps_per_generation": (
        ("generation_batch_size",),
        only(
            lambda a: (
                _algorithm(a) == "grpo"
                and a["training"]["steps_per_generation"] != a["training"]["gradient_accumulation_steps"]
            ),
            lambda a: a["training"]["steps_per_generation"],
        ),
    ),
    "training.rollout.num_generations": (
        (),
        only(lambda a: _algorithm(a) == "grpo", lambda a: a["num_generations"]),
    ),
    "training.rollout.max_completion_length": ((), only(_rollout, lambda a: a["max_completion_length"])),
    "training.rollout.temperature": ((), only(_rollout, lambda a: a["temperature"])),
    "training.rollout.top_p": ((), only(_rollout, lambda a: a["top_p"])),
    "training.rollout.top_k": ((), only(_rollout, lambda a: max(a["top_k"], 0))),
}
