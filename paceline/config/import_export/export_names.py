"""Our keys under the names of other systems, one by one or made of several."""

from __future__ import annotations

from paceline.config.import_export.argument_tables import defaults
from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.core.json_types import Json, JsonObject

#: Of Transformers' arguments, those with our names; precision, LoRA and sharding are made of several keys
_MADE = ("bf16", "fp16", "deepspeed", "fsdp", "fsdp_config", "log_level", "resume_from_checkpoint")
_SHARED = {
    f"training.{name}": name
    for name in defaults("transformers")
    if name in TrainingSection.model_fields and name not in _MADE
}
_MODEL = {
    "model.name_or_path": "model_name_or_path",
    "model.revision": "model_revision",
    "model.trust_remote_code": "trust_remote_code",
}
_TRL = (
    _SHARED
    | _MODEL
    | {
        "model.dtype": "dtype",
        "model.chat_template": "chat_template",
        "data.max_length": "max_length",
        "data.num_proc": "dataset_num_proc",
        "training.router_aux_loss_coef": "router_aux_loss_coef",
        "lora.r": "lora_r",
        "lora.alpha": "lora_alpha",
        "lora.dropout": "lora_dropout",
        "lora.modules_to_save": "lora_modules_to_save",
        "lora.target_parameters": "lora_target_parameters",
        "lora.use_rslora": "use_rslora",
        "lora.use_dora": "use_dora",
    }
)
_LLAMAFACTORY = (
    {k: v for k, v in _SHARED.items() if v != "gradient_checkpointing"}
    | _MODEL
    | {
        "data.max_length": "cutoff_len",
        "data.num_proc": "preprocessing_num_workers",
        "data.validation_split": "val_size",
        "training.fp8": "fp8",
        "lora.r": "lora_rank",
        "lora.alpha": "lora_alpha",
        "lora.dropout": "lora_dropout",
        "lora.use_rslora": "use_rslora",
        "lora.use_dora": "use_dora",
        "lora.loraplus_lr_ratio": "loraplus_lr_ratio",
        "lora.adapter_name_or_path": "adapter_name_or_path",
    }
)
_AXOLOTL = {
    "model.name_or_path": "base_model",
    "model.revision": "revision_of_model",
    "model.trust_remote_code": "trust_remote_code",
    "model.tokenizer": "tokenizer_config",
    "model.chat_template": "chat_template_jinja",
    "data.max_length": "sequence_len",
    "data.num_proc": "dataset_num_proc",
    "data.packing": "sample_packing",
    "data.validation_split": "val_set_size",
    "training.per_device_train_batch_size": "micro_batch_size",
    "training.per_device_eval_batch_size": "eval_batch_size",
    "training.gradient_accumulation_steps": "gradient_accumulation_steps",
    "training.num_train_epochs": "num_epochs",
    "training.max_steps": "max_steps",
    "training.learning_rate": "learning_rate",
    "training.weight_decay": "weight_decay",
    "training.adam_beta1": "adam_beta1",
    "training.adam_beta2": "adam_beta2",
    "training.adam_epsilon": "adam_epsilon",
    "training.max_grad_norm": "max_grad_norm",
    "training.optim": "optimizer",
    "training.optim_args": "optim_args",
    "training.optim_target_modules": "optim_target_modules",
    "training.lr_scheduler_type": "lr_scheduler",
    "training.lr_scheduler_kwargs": "lr_scheduler_kwargs",
    "training.gradient_checkpointing": "gradient_checkpointing",
    "training.seed": "seed",
    "training.output_dir": "output_dir",
    "training.ddp_timeout": "ddp_timeout",
    "training.dataloader_num_workers": "dataloader_num_workers",
    "training.dataloader_pin_memory": "dataloader_pin_memory",
    "training.dataloader_drop_last": "dataloader_drop_last",
    "training.torch_compile": "torch_compile",
    "training.save_strategy": "save_strategy",
    "training.save_total_limit": "save_total_limit",
    "training.logging_steps": "logging_steps",
    "training.eval_strategy": "eval_strategy",
    "lora.r": "lora_r",
    "lora.alpha": "lora_alpha",
    "lora.dropout": "lora_dropout",
    "lora.modules_to_save": "lora_modules_to_save",
    "lora.target_parameters": "lora_target_parameters",
    "lora.use_rslora": "peft_use_rslora",
    "lora.use_dora": "peft_use_dora",
    "lora.loraplus_lr_ratio": "loraplus_lr_ratio",
    "lora.init_lora_weights": "peft_init_lora_weights",
    "lora.adapter_name_or_path": "lora_model_dir",
}
NAMES = {"trl": _TRL, "llamafactory": _LLAMAFACTORY, "axolotl": _AXOLOTL}

_KTO = {
    "desirable_weight": "desirable_weight",
    "undesirable_weight": "undesirable_weight",
    "beta": "beta",
    "loss_type": "loss_type",
}
_ROLLOUT = (
    "num_generations",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "steps_per_generation",
)
_OF_TRL = {
    "dpo": {
        k: k
        for k in (
            "beta",
            "loss_type",
            "label_smoothing",
            "precompute_ref_log_probs",
            "precompute_ref_batch_size",
        )
    },
    "kto": _KTO,
    "reward": {"center_rewards_coefficient": "center_rewards_coefficient"},
    "grpo": {
        k: k
        for k in (
            "beta",
            "epsilon",
            "epsilon_high",
            "delta",
            "loss_type",
            "scale_rewards",
            "num_iterations",
            "importance_sampling_level",
            "mask_truncated_completions",
            "use_bias_correction_kl",
        )
    },
    "rloo": {
        k: k
        for k in (
            "beta",
            "epsilon",
            "epsilon_high",
            "normalize_advantages",
            "reward_clip_range",
            "num_iterations",
            "mask_truncated_completions",
        )
    },
}
_OF_LLAMAFACTORY = {
    "dpo": {
        "beta": "pref_beta",
        "loss_type": "pref_loss",
        "label_smoothing": "dpo_label_smoothing",
        "rpo_alpha": "pref_ftx",
        "ref_model": "ref_model",
    },
    "orpo": {"beta": "pref_beta"},
    "simpo": {"beta": "pref_beta", "simpo_gamma": "simpo_gamma"},
    "kto": {
        "beta": "pref_beta",
        "desirable_weight": "kto_chosen_weight",
        "undesirable_weight": "kto_rejected_weight",
    },
}
_OF_AXOLOTL = {
    "dpo": {"beta": "rl_beta", "label_smoothing": "dpo_label_smoothing", "rpo_alpha": "rpo_alpha"},
    "orpo": {"beta": "orpo_alpha"},
    "simpo": {"beta": "rl_beta", "simpo_gamma": "simpo_gamma", "cpo_alpha": "cpo_alpha"},
    "kto": {
        "beta": "rl_beta",
        "desirable_weight": "kto_desirable_weight",
        "undesirable_weight": "kto_undesirable_weight",
    },
    "reward": {"center_rewards_coefficient": "center_rewards_coefficient"},
}
#: system → algorithm → our option → theirs
OPTIONS_OF: dict[str, dict[str, dict[str, str]]] = {
    "trl": _OF_TRL,
    "llamafactory": _OF_LLAMAFACTORY,
    "axolotl": _OF_AXOLOTL,
}
ROLLOUT_OF_TRL = _ROLLOUT
#: algorithms of each system, by ours
ALGORITHMS_OF: dict[str, dict[str, str]] = {
    "trl": {name: name for name in ("sft", "dpo", "kto", "reward", "grpo", "rloo")},
    "llamafactory": {"sft": "sft", "dpo": "dpo", "orpo": "dpo", "simpo": "dpo", "kto": "kto", "reward": "rm"},
    "axolotl": {"sft": "", "dpo": "dpo", "orpo": "orpo", "simpo": "simpo", "kto": "kto", "reward": ""},
}


_PURE_BF16: dict[str, JsonObject] = {
    "trl": {"dtype": "bfloat16", "bf16": True},
    "llamafactory": {"pure_bf16": True, "bf16": False},
    "axolotl": {"bf16": True},
}
# axolotl's words for data.on_too_long
_TOO_LONG = {"skip": "drop", "truncate": "truncate", "refuse": "raise"}
_ATTENTION = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}


def made_keys(config: Config, system: str) -> JsonObject:
    """Return the keys of ``system`` that need more than a name."""
    keys = _precision(config, system) | (_adapter(config, system) if config.lora is not None else {})
    if system == "trl":
        return keys | _trl(config)
    return keys | (_llamafactory(config) if system == "llamafactory" else _axolotl(config))


def _precision(config: Config, system: str) -> JsonObject:
    word = config.training.mixed_precision
    if config.training.pure_bf16:
        return _PURE_BF16[system] | {"fp16": False}
    return {"bf16": True if word == "auto" else word == "bf16", "fp16": word == "fp16"}


def _present(keys: JsonObject) -> JsonObject:
    return {key: value for key, value in keys.items() if value is not None}


def _adapter(config: Config, system: str) -> JsonObject:
    lora = config.lora
    assert lora is not None
    every, names = lora.target_modules == ("all-linear",), list(lora.target_modules)
    bits, alpha = lora.quantization_bit, lora.alpha if lora.alpha is not None else 2 * lora.r
    if system == "trl":
        return _present(
            {
                "use_peft": True,
                "lora_alpha": alpha,
                "lora_target_modules": "all-linear" if every else names,
                f"load_in_{bits}bit": True if bits else None,
                "bnb_4bit_quant_type": lora.quantization_type if bits else None,
                "use_bnb_nested_quant": lora.double_quant if bits else None,
            }
        )
    if system == "llamafactory":
        pissa = lora.init_lora_weights == "pissa"
        return _present(
            {
                "finetuning_type": "lora",
                "lora_alpha": alpha,
                "lora_target": "all" if every else ",".join(names),
                "additional_target": ",".join(lora.modules_to_save) or None,
                "quantization_bit": bits or None,
                "quantization_type": lora.quantization_type if bits else None,
                "double_quantization": lora.double_quant if bits else None,
                "pissa_init": True if pissa else None,
                "pissa_iter": -1 if pissa else None,
            }
        )
    return _present(
        {
            "adapter": "qlora" if bits else "lora",
            "lora_alpha": alpha,
            "lora_target_linear": True if every else None,
            "lora_target_modules": None if every else names,
            f"load_in_{bits}bit": True if bits else None,
        }
    )


def _attention_of(config: Config) -> str | None:
    """Return the attention that the config names; None where it is chosen."""
    name = config.model.attn_implementation
    return None if name == "auto" else name


def _trl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    supervised, every_token = training.algorithm == "sft", data.train_on == "all"
    one = data.train[0] if len(data.train) == 1 and data.train[0].weight == 1.0 else None
    mixture: list[Json] = [
        {"path": d.path, "split": d.split} | ({"name": d.name} if d.name else {}) | {"fraction": d.weight}
        for d in data.train
    ]
    return _present(
        {
            "dataset_name": one.path if one else None,
            "dataset_train_split": one.split if one else None,
            "dataset_config": (one.name or None) if one else None,
            "datasets": mixture if mixture and not one else None,
            "dataset_test_split": data.eval[0].split if data.eval else None,
            "attn_implementation": _attention_of(config),
            "packing": data.packing if supervised else None,
            "assistant_only_loss": not every_token if supervised else None,
            "completion_only_loss": False if supervised and every_token else None,
            "disable_dropout": None if supervised else training.disable_dropout,
            "lora_dropout": config.lora.dropout or 0.0 if config.lora else None,
        }
    )


def _llamafactory(config: Config) -> JsonObject:
    data, algorithm = config.data, config.training.algorithm
    limits = {d.max_rows for d in data.train}
    return _present(
        {
            "stage": ALGORITHMS_OF["llamafactory"][algorithm],
            "do_train": True,
            "finetuning_type": "full" if config.lora is None else None,
            "pref_loss": algorithm if algorithm in ("orpo", "simpo") else None,
            "dataset": ",".join(d.path for d in data.train) or None,
            "dataset_dir": "." if data.train else None,
            "eval_dataset": ",".join(d.path for d in data.eval or ()) or None,
            "max_samples": limits.pop() if len(limits) == 1 else None,
            "neat_packing": True if data.packing else None,
            "packing": None if data.packing else False,
            "train_on_prompt": True if data.train_on == "all" else None,
            "disable_gradient_checkpointing": not config.training.gradient_checkpointing,
            "flash_attn": _ATTENTION.get(config.model.attn_implementation),
        }
    )


def _axolotl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    steps = training.warmup_steps
    whole_steps = steps >= 1 or not steps
    return _present(
        {
            "rl": ALGORITHMS_OF["axolotl"][training.algorithm] or None,
            "reward_model": True if training.algorithm == "reward" else None,
            "datasets": [_set(d.path, d.name, d.split, d.format) for d in data.train],
            "train_on_inputs": data.train_on == "all",
            "excess_length_strategy": _TOO_LONG[data.on_too_long],
            "attn_implementation": _attention_of(config),
            "warmup_steps": int(steps) if whole_steps else None,
            "warmup_ratio": None if whole_steps else steps,
            "save_steps": training.save_steps if training.save_strategy == "steps" else None,
            "eval_steps": (training.eval_steps or training.logging_steps)
            if training.eval_strategy == "steps"
            else None,
            "use_tensorboard": True if "tensorboard" in training.report_to else None,
        }
    )


def _set(path: str, name: str | None, split: str, kind: str) -> Json:
    return _present(
        {
            "path": path,
            "type": {"text": "completion", "alpaca": "alpaca"}.get(kind, "chat_template"),
            "split": split,
            "name": name or None,
        }
    )
