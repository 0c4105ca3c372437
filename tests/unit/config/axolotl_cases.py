"""Generated files of axolotl, and what each of our settings must be by its own resolved config."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swift_cases import SKIPPED, idle_warmup, only

Resolved = Mapping[str, Any]
_COMMON: dict[str, tuple[object, ...]] = {
    "adapter": ("lora", "qlora", None),
    "bf16": (True, "auto", False),
    "fp16": (True,),
    "tf32": (True,),
    "sequence_len": (64, 256),
    "learning_rate": (1e-4, "5e-6"),
    "weight_decay": (0.1, 0.01),
    "adam_beta1": (0.8,),
    "adam_beta2": (0.95, 0.99),
    "adam_epsilon": (1e-6,),
    "warmup_ratio": (0.05, 0.1),
    "warmup_steps": (10, 1, 0),
    "lr_scheduler": ("cosine", "linear", "constant", "constant_with_warmup", "one_cycle", "rex"),
    "cosine_min_lr_ratio": (0.1,),
    "cosine_constant_lr_ratio": (0.8,),
    "lr_quadratic_warmup": (True,),
    "num_epochs": (1, 2, 0.5),
    "max_steps": (7, 200),
    "micro_batch_size": (1, 2),
    "gradient_accumulation_steps": (2, 4),
    "batch_size": (8,),
    "eval_batch_size": (4,),
    "gradient_checkpointing": (True, False),
    "activation_offloading": (True,),
    "max_grad_norm": (0.5,),
    "seed": (7,),
    "lora_r": (4, 16),
    "lora_alpha": (8, 64),
    "lora_dropout": (0.1, 0.0),
    "lora_target_modules": (["q_proj", "v_proj"], ["k_proj"]),
    "lora_target_linear": (True,),
    "lora_modules_to_save": (["embed_tokens"],),
    "peft_use_rslora": (True,),
    "peft_use_dora": (True,),
    "peft_layers_to_transform": ([0],),
    "peft_init_lora_weights": ("gaussian", "pissa"),
    "loraplus_lr_ratio": (16.0,),
    "lora_exclude_modules": (["lm_head"],),
    "load_in_8bit": (True, False),
    "load_in_4bit": (True, False),
    "sample_packing": (True, False),
    "val_set_size": (0.1, 0.0),
    "eval_strategy": ("epoch", "no"),
    "eval_steps": (20, 0.25),
    "evals_per_epoch": (4, 1),
    "save_steps": (50,),
    "save_strategy": ("epoch", "no"),
    "saves_per_epoch": (2, 1),
    "save_total_limit": (2,),
    "save_only_model": (True,),
    "early_stopping_patience": (3,),
    "load_best_model_at_end": (True,),
    "metric_for_best_model": ("loss",),
    "optimizer": ("adamw_torch", "sgd", "muon", "adamw_bnb_8bit", "adamw_8bit"),
    "neftune_noise_alpha": (5,),
    "group_by_length": (True,),
    "dataloader_drop_last": (True,),
    "excess_length_strategy": ("truncate", "raise"),
    "deepspeed": ({"zero_optimization": {"stage": 2}}, {"zero_optimization": {"stage": 3}}),
    "fsdp_version": (2,),
    "fsdp_config": ({"reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},),
    "include_tokens_per_second": (True,),
    "embedding_lr": (1e-5,),
    "shuffle_merged_datasets": (False,),
}
_TURNS: dict[str, tuple[object, ...]] = {
    "roles_to_train": (["assistant"], ["user", "assistant"], []),
    "train_on_eos": ("turn", "all", "last", "none"),
    "message_field_training": ("train",),
    "drop_system_message": (True,),
}
_OF: dict[str, dict[str, tuple[object, ...]]] = {
    "sft": {"train_on_inputs": (True, False)},
    "text": {"train_on_inputs": (True, False)},
    "dpo": {
        "rl_beta": (0.3,),
        "dpo_loss_type": (["sigmoid"], ["hinge"], ["ipo"], ["robust"]),
        "dpo_label_smoothing": (0.1,),
        "precompute_ref_log_probs": (True,),
        "dpo_use_weighting": (True,),
    },
    "ipo": {"rl_beta": (0.3,), "dpo_label_smoothing": (0.1,)},
    "kto": {"rl_beta": (0.3,), "kto_desirable_weight": (0.8,), "kto_undesirable_weight": (1.2,)},
    "orpo": {"orpo_alpha": (0.2,), "rl_beta": (0.3,)},
    "simpo": {"rl_beta": (0.3,), "simpo_gamma": (0.7,), "cpo_alpha": (0.5,)},
    "reward": {"center_rewards_coefficient": (0.01,)},
    "grpo": {"rl_beta": (0.3,)},
}
_GRPO: dict[str, tuple[object, ...]] = {
    "beta": (0.0, 0.02),
    "num_generations": (2, 4),
    "max_completion_length": (128,),
    "temperature": (0.7,),
    "top_p": (0.9,),
    "top_k": (20,),
    "epsilon": (0.1,),
    "epsilon_high": (0.28,),
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
    "scale_rewards": (True, False, "group", "batch", "none"),
    "num_iterations": (2,),
    "importance_sampling_level": ("token", "sequence"),
    "mask_truncated_completions": (True,),
    "sync_ref_model": (True,),
    "entropy_coef": (0.01,),
    "repetition_penalty": (1.1,),
    "min_p": (0.05,),
    "generation_batch_size": (16,),
}


TEMPLATE = "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|assistant|> {% endif %}"
WORDS = ["question", "answer", "other", "reply", "rules", "text"]
TURNS = [("system", "rules"), ("user", "question"), ("assistant", "answer")]
TURNS += [("user", "other"), ("assistant", "reply")]


def prepare(folder: Path) -> None:
    """Write a tokenizer whose tokens are words, and rows of two answers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    made = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(special + WORDS)}, unk_token="<|pad|>")
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|pad|>", eos_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": special[2:]})
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder / "bfloat16")
    turns = [{"role": role, "content": content} for role, content in TURNS]
    (folder / "turns.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (folder / "texts.jsonl").write_text(json.dumps({"text": "question answer"}) + "\n")


def _drawn(draw: random.Random, choices: Mapping[str, tuple[object, ...]], often: float) -> dict[str, object]:
    return {key: draw.choice(values) for key, values in choices.items() if draw.random() < often}


def files(folder: Path, count: int) -> list[dict[str, object]]:
    """Return ``count`` seeded files over every kind of training."""
    draw = random.Random(190)
    found: list[dict[str, object]] = []
    for number in range(count):
        kind = list(_OF)[number % len(_OF)]
        given = {"sequence_len": 128, **_drawn(draw, _COMMON, 0.12), **_drawn(draw, _OF[kind], 0.4)}
        given |= {"base_model": str(folder / "bfloat16"), "output_dir": str(folder)}
        given |= {name: 1 for name in ("micro_batch_size",) if name not in given}
        given |= (
            {"gradient_accumulation_steps": 2}
            if not {"batch_size", "gradient_accumulation_steps"} & set(given)
            else {}
        )
        given |= _whole(given)
        rows: dict[str, object] = {"path": str(folder / "turns.jsonl"), "ds_type": "json"}
        if kind == "text":
            rows |= {"type": "completion", "field": "text", "path": str(folder / "texts.jsonl")}
        else:
            rows["type"] = {
                "sft": "chat_template", "reward": "bradley_terry.chat_template", "kto": "chatml.argilla"
            }.get(kind, "chat_template.default")  # fmt: skip
            rows |= _drawn(draw, _TURNS, 0.25) if kind == "sft" else {}
        given["datasets"] = [rows]
        if kind == "reward":
            given |= {
                "reward_model": True,
                "num_labels": 1,
                "model_type": "AutoModelForSequenceClassification",
            }
        elif kind not in ("sft", "text"):
            given["rl"] = kind
        if kind == "kto":
            given |= {"remove_unused_columns": False}
        if kind not in ("sft", "text"):
            given |= {"sample_packing": False}
        if kind == "grpo":
            given |= {"trl": _drawn(draw, _GRPO, 0.3), "micro_batch_size": 8, "eval_batch_size": 8}
        found.append(given)
    return found


_ONE_OF = (
    ("eval_steps", "evals_per_epoch"),
    ("eval_steps", "eval_strategy"),
    ("evals_per_epoch", "eval_strategy"),
    ("save_steps", "saves_per_epoch"),
    ("save_steps", "save_strategy"),
    ("saves_per_epoch", "save_strategy"),
    ("gradient_accumulation_steps", "batch_size"),
    ("warmup_steps", "warmup_ratio"),
)


def _whole(given: Mapping[str, object]) -> dict[str, object]:
    """What axolotl refuses without the other."""
    adapter = given.get("adapter")
    more: dict[str, object] = {"load_in_4bit": adapter == "qlora"}
    if adapter == "qlora" or not adapter:
        more["load_in_8bit"] = False
    if adapter and not {"lora_target_modules", "lora_target_linear"} & set(given):
        more["lora_target_linear"] = True
    if adapter:
        more |= {key: given.get(key, value) for key, value in (("lora_r", 8), ("lora_alpha", 16))}
        more["lora_dropout"] = given.get("lora_dropout", 0.0)
    for one, other in _ONE_OF:
        if one in given and other in given:
            more[other] = None
    if "activation_offloading" in given:
        more["gradient_checkpointing"] = True
    if "early_stopping_patience" in given:
        more |= {"eval_steps": 20, "save_steps": 40, "val_set_size": 0.1}
        more |= dict.fromkeys(("evals_per_epoch", "saves_per_epoch", "eval_strategy", "save_strategy"))
    if "learning_rate" not in given:
        more["learning_rate"] = 2e-4
    return more


def _trainer(name: str) -> Callable[[Resolved], object]:
    return lambda a: a["training"].get(name)


def _algorithm(a: Resolved) -> str:
    return (
        "reward" if a.get("reward_model") else {None: "sft", "ipo": "dpo"}.get(a.get("rl"), str(a.get("rl")))
    )


def _of(algorithms: tuple[str, ...], name: str) -> Callable[[Resolved], object]:
    return only(lambda a: _algorithm(a) in algorithms, _trainer(name))


def _lora(name: str) -> Callable[[Resolved], object]:
    return only(lambda a: bool(a.get("lora")), lambda a: a["lora"].get(name))


def _precision(a: Resolved) -> str:
    full = a["training"].get("bf16_full_eval")
    return "fp16" if a["training"]["fp16"] else "bf16" if a["training"]["bf16"] or full else "no"


def _schedule(a: Resolved) -> object:
    least = a["training"].get("cosine_min_lr_ratio")
    own, name = a["training"].get("alternate_lr_scheduler_type"), a["training"]["lr_scheduler_type"]
    return own or ("cosine_with_min_lr" if least and name == "cosine" else name)


def _train_on(a: Resolved) -> object:
    """By the words of the rows' turns that have loss."""
    words = a["labelled"]
    return (
        "all" if {"question", "other"} & set(words)
        else "assistant" if "answer" in words else "last" if "reply" in words else "nobody"
    )  # fmt: skip


def _ended(a: Resolved) -> object:
    """Whether what ends an answer has loss, as here."""
    ends = a["labelled"].count("<|end|>")
    return None if ends * 2 == len(a["labelled"]) else "another"


def _quantised(a: Resolved) -> object:
    return 4 if a.get("load_in_4bit") else 8 if a.get("load_in_8bit") else None


def _targets(a: Resolved) -> object:
    return ["all-linear"] if a.get("lora_target_linear") else sorted(a["lora"]["target_modules"])


_PLAIN = (
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "num_train_epochs"),
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "seed"),
    *("save_strategy", "save_total_limit", "eval_strategy", "neftune_noise_alpha"),
    *("per_device_eval_batch_size", "dataloader_drop_last"),
)
_THEIRS = {
    "neftune_noise_alpha": ("neftune_noise_alpha",),
    "dataloader_drop_last": ("dataloader_drop_last",),
}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "dpo": ("beta", "precompute_ref_log_probs"),
    "kto": ("beta", "desirable_weight", "undesirable_weight"),
    "orpo": ("beta",),
    "simpo": ("beta", "cpo_alpha"),
    "grpo": (
        *("beta", "epsilon", "epsilon_high", "loss_type", "num_iterations", "importance_sampling_level"),
        *("mask_truncated_completions", "use_bias_correction_kl", "delta"),
    ),
}
_ROLLOUT = ("num_generations", "temperature", "top_p")

#: our path → (axolotl's keys whose verdict may excuse a difference, what its resolved config makes of it)
TABLE: dict[str, tuple[tuple[str, ...], Callable[[Resolved], object]]] = {
    **{f"training.{key}": (_THEIRS.get(key, ()), _trainer(key)) for key in _PLAIN},
    # axolotl hands its arguments to peft's LoRA+, but not this one
    "training.weight_decay": (
        ("loraplus_lr_ratio",),
        lambda a: 0.0 if a["training"].get("loraplus_lr_ratio") else a["training"]["weight_decay"],
    ),
    "training.gradient_checkpointing": (
        (),
        only(lambda a: not a.get("activation_offloading"), _trainer("gradient_checkpointing")),
    ),
    "training.algorithm": ((), _algorithm),
    "training.disable_dropout": ((), lambda a: bool(a["training"].get("disable_dropout"))),
    "training.optim": (("optimizer",), lambda a: a["optimizer"]),
    "training.lr_scheduler_type": (
        ("lr_scheduler", "lr_quadratic_warmup", "cosine_constant_lr_ratio"),
        _schedule,
    ),
    "training.lr_scheduler_kwargs": (
        ("lr_scheduler", "lr_quadratic_warmup", "cosine_constant_lr_ratio"),
        only(
            lambda a: _schedule(a) == "cosine_with_min_lr",
            lambda a: {"min_lr_rate": a["training"]["cosine_min_lr_ratio"]},
        ),
    ),
    "training.mixed_precision": ((), _precision),
    "training.warmup_steps": (
        ("warmup_ratio",),
        lambda a: SKIPPED if idle_warmup(_schedule(a)) else _trainer("warmup_steps")(a),
    ),
    "training.save_steps": (
        (),
        only(lambda a: a["training"]["save_strategy"] == "steps", _trainer("save_steps")),
    ),
    "training.eval_steps": (
        (),
        only(lambda a: a["training"]["eval_strategy"] == "steps", _trainer("eval_steps")),
    ),
    "training.eval_on_start": (
        (),
        only(lambda a: a["training"]["eval_strategy"] != "no", _trainer("eval_on_start")),
    ),
    "training.load_best_model_at_end": ((), lambda a: bool(a["training"]["load_best_model_at_end"])),
    "training.deepspeed.zero_optimization.stage": (
        (),
        only(lambda a: bool(a.get("deepspeed")), lambda a: a["deepspeed"]["zero_optimization"]["stage"]),
    ),
    "data.max_length": (("sequence_len",), lambda a: a["sequence_len"]),
    "data.packing": (
        ("sample_packing",),
        only(lambda a: not a.get("rl"), lambda a: bool(a.get("sample_packing"))),
    ),
    "data.validation_split": ((), lambda a: a["val_set_size"] or None),
    "data.on_too_long": (
        ("excess_length_strategy",),
        lambda a: {"truncate": "truncate", "raise": "refuse"}.get(a.get("excess_length_strategy"), "skip"),
    ),
    "data.train_on": (("datasets.0.roles_to_train",), only(lambda a: bool(a.get("labelled")), _train_on)),
    "data.end": (
        ("datasets.0.train_on_eos", "datasets.0.roles_to_train", "train_on_inputs"),
        only(lambda a: bool(a.get("labelled")), _ended),
    ),
    "lora.r": ((), _lora("r")),
    "lora.alpha": ((), _lora("lora_alpha")),
    "lora.dropout": ((), _lora("lora_dropout")),
    "lora.bias": ((), _lora("bias")),
    "lora.use_rslora": ((), only(lambda a: bool(a.get("lora")), lambda a: bool(a["lora"].get("use_rslora")))),
    "lora.use_dora": ((), only(lambda a: bool(a.get("lora")), lambda a: bool(a["lora"].get("use_dora")))),
    "lora.layers": (("peft_layers_to_transform",), _lora("layers_to_transform")),
    "lora.excluded": (("lora_exclude_modules",), _lora("exclude_modules")),
    "lora.init": (
        ("peft_init_lora_weights",),
        only(
            lambda a: bool(a.get("lora")) and a["lora"].get("init_lora_weights") is not True,
            _lora("init_lora_weights"),
        ),
    ),
    "lora.modules_to_save": (
        (),
        only(lambda a: bool(a.get("lora")), lambda a: a["lora"].get("modules_to_save") or []),
    ),
    "lora.target_modules": ((), only(lambda a: bool(a.get("lora")), _targets)),
    "lora.quantization_bit": ((), only(lambda a: bool(a.get("lora")), _quantised)),
    "lora.loraplus_lr_ratio": ((), only(lambda a: bool(a.get("lora")), _trainer("loraplus_lr_ratio"))),
    **{
        f"training.{ours}.{option}": ((), _of((ours,), option))
        for ours, options in _OPTIONS.items()
        for option in options
    },
    "training.simpo.simpo_gamma": (  # without one axolotl's run ends in an error
        (),
        only(
            lambda a: _algorithm(a) == "simpo" and a["training"].get("simpo_gamma") is not None,
            _trainer("simpo_gamma"),
        ),
    ),
    "training.dpo.loss_type": (
        ("dpo_loss_type",),
        only(lambda a: _algorithm(a) == "dpo", lambda a: a["training"]["loss_type"][0]),
    ),
    "training.dpo.label_smoothing": (
        (),
        only(
            lambda a: _algorithm(a) == "dpo" and "robust" in a["training"]["loss_type"],
            _trainer("label_smoothing"),
        ),
    ),
    "training.dpo.use_weighting": (
        ("dpo_use_weighting",),
        only(lambda a: _algorithm(a) == "dpo", lambda a: a["training"].get("use_weighting") or None),
    ),
    "training.reward.center_rewards_coefficient": (
        (),
        only(
            lambda a: _algorithm(a) == "reward", lambda a: a["training"]["center_rewards_coefficient"] or 0.0
        ),
    ),
    "training.dpo.rpo_alpha": (
        (),
        only(lambda a: _algorithm(a) == "dpo", lambda a: a["training"].get("rpo_alpha")),
    ),
    "training.grpo.scale_rewards": ((), _of(("grpo",), "scale_rewards")),
    **{f"training.rollout.{name}": ((), _of(("grpo",), name)) for name in _ROLLOUT},
    "training.rollout.max_completion_length": (
        ("trl.max_completion_length",),
        _of(("grpo",), "max_completion_length"),
    ),
    "training.rollout.top_k": (
        (),
        only(lambda a: _algorithm(a) == "grpo", lambda a: max(a["training"]["top_k"] or 0, 0)),
    ),
    **{
        f"training.grpo.{name}": (
            (f"trl.{name}",),
            only(lambda a: _algorithm(a) == "grpo", lambda a, name=name: a["training"].get(name) or None),
        )
        for name in ("sync_ref_model", "entropy_coef", "min_p")
    },
    "training.rollout.repetition_penalty": (
        ("trl.repetition_penalty",),
        only(
            lambda a: _algorithm(a) == "grpo" and a["training"]["repetition_penalty"] != 1.0,
            _trainer("repetition_penalty"),
        ),
    ),
}
