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


def _adapter(config: Config, system: str) -> JsonObject:
    lora = config.lora
    assert lora is not None
    every = lora.target_modules == ("all-linear",)
    alpha = lora.alpha if lora.alpha is not None else 2 * lora.r
    bits = lora.quantization_bit
    if system == "trl":
        keys: JsonObject = {"use_peft": True, "lora_alpha": alpha}
        keys["lora_target_modules"] = "all-linear" if every else list(lora.target_modules)
        if bits:
            keys |= {f"load_in_{bits}bit": True, "bnb_4bit_quant_type": lora.quantization_type}
            keys["use_bnb_nested_quant"] = lora.double_quant
        return keys
    if system == "llamafactory":
        keys = {"finetuning_type": "lora", "lora_alpha": alpha}
        keys["lora_target"] = "all" if every else ",".join(lora.target_modules)
        if lora.modules_to_save:
            keys["additional_target"] = ",".join(lora.modules_to_save)
        if bits:
            keys |= {"quantization_bit": bits, "quantization_type": lora.quantization_type}
            keys["double_quantization"] = lora.double_quant
        if lora.init_lora_weights == "pissa":
            keys |= {"pissa_init": True, "pissa_iter": -1}
        return keys
    keys = {"adapter": "qlora" if bits else "lora", "lora_alpha": alpha}
    keys |= {"lora_target_linear": True} if every else {"lora_target_modules": list(lora.target_modules)}
    return keys | ({f"load_in_{bits}bit": True} if bits else {})


def _trl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    keys: JsonObject = {}
    sets = [{"path": d.path, "split": d.split} | ({"name": d.name} if d.name else {}) for d in data.train]
    weights = [d.weight for d in data.train]
    if len(sets) == 1 and weights == [1.0]:
        keys |= {"dataset_name": sets[0]["path"], "dataset_train_split": sets[0]["split"]}
        keys |= {"dataset_config": sets[0]["name"]} if "name" in sets[0] else {}
    elif sets:
        keys["datasets"] = [item | {"fraction": weight} for item, weight in zip(sets, weights, strict=True)]
    if data.eval:
        keys["dataset_test_split"] = data.eval[0].split
    if config.model.attn_implementation != "auto":
        keys["attn_implementation"] = config.model.attn_implementation
    if training.algorithm == "sft":
        keys |= {"packing": data.packing, "assistant_only_loss": data.train_on != "all"}
        keys |= {"completion_only_loss": False} if data.train_on == "all" else {}
    else:
        keys["disable_dropout"] = training.disable_dropout
    keys["lora_dropout"] = config.lora.dropout or 0.0 if config.lora else None
    return {key: value for key, value in keys.items() if value is not None}


def _llamafactory(config: Config) -> JsonObject:
    data, training = config.data, config.training
    algorithm = training.algorithm
    keys: JsonObject = {"stage": ALGORITHMS_OF["llamafactory"][algorithm], "do_train": True}
    if config.lora is None:
        keys["finetuning_type"] = "full"
    if algorithm in ("orpo", "simpo"):
        keys["pref_loss"] = algorithm
    keys |= {"dataset": ",".join(d.path for d in data.train), "dataset_dir": "."} if data.train else {}
    keys |= {"eval_dataset": ",".join(d.path for d in data.eval)} if data.eval else {}
    limits = {d.max_rows for d in data.train}
    if len(limits) == 1 and None not in limits:
        keys["max_samples"] = limits.pop()
    keys |= {"neat_packing": True} if data.packing else {"packing": False}
    keys |= {"train_on_prompt": True} if data.train_on == "all" else {}
    keys["disable_gradient_checkpointing"] = not training.gradient_checkpointing
    if (kernel := _ATTENTION.get(config.model.attn_implementation)) is not None:
        keys["flash_attn"] = kernel
    return keys


def _axolotl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    rl = ALGORITHMS_OF["axolotl"][training.algorithm]
    keys: JsonObject = {"rl": rl} if rl else {}
    if training.algorithm == "reward":
        keys["reward_model"] = True
    keys["datasets"] = [_set(d.path, d.name, d.split, d.format) for d in data.train]
    keys["train_on_inputs"] = data.train_on == "all"
    words = {"skip": "drop", "truncate": "truncate", "refuse": "raise"}
    keys["excess_length_strategy"] = words[data.on_too_long]
    if config.model.attn_implementation != "auto":
        keys["attn_implementation"] = config.model.attn_implementation
    steps = training.warmup_steps
    keys["warmup_steps" if steps >= 1 or not steps else "warmup_ratio"] = (
        int(steps) if steps >= 1 or not steps else steps
    )
    if training.save_strategy == "steps":
        keys["save_steps"] = training.save_steps
    if training.eval_strategy == "steps":
        keys["eval_steps"] = training.eval_steps or training.logging_steps
    if "tensorboard" in training.report_to:
        keys["use_tensorboard"] = True
    return keys


def _set(path: str, name: str | None, split: str, kind: str) -> Json:
    types = {"text": "completion", "alpaca": "alpaca"}
    data_set: JsonObject = {"path": path, "type": types.get(kind, "chat_template"), "split": split}
    return data_set | ({"name": name} if name else {})
