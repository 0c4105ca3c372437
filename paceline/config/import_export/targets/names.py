"""Our keys under the names of other systems, one by one."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.import_export.argument_tables import defaults
from paceline.config.sections.training import TrainingSection

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
_SWIFT = _SHARED | {
    "model.name_or_path": "model",
    "model.revision": "model_revision",
    "data.max_length": "max_length",
    "data.num_proc": "dataset_num_proc",
    "data.default_system": "system",
    "training.router_aux_loss_coef": "router_aux_loss_coef",
    "lora.r": "lora_rank",
    "lora.alpha": "lora_alpha",
    "lora.dropout": "lora_dropout",
    "lora.modules_to_save": "modules_to_save",
    "lora.use_rslora": "use_rslora",
    "lora.use_dora": "use_dora",
    "lora.adapter_name_or_path": "adapters",
}
NAMES: dict[str, dict[str, str]] = {
    "trl": _TRL,
    "llamafactory": _LLAMAFACTORY,
    "axolotl": _AXOLOTL,
    "swift": _SWIFT,
}

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
_OF_SWIFT = {
    "dpo": {name: name for name in ("beta", "loss_type", "label_smoothing", "rpo_alpha", "ref_model")},
    "orpo": {"beta": "beta"},
    "cpo": {name: name for name in ("beta", "loss_type", "label_smoothing", "cpo_alpha", "simpo_gamma")},
    "simpo": {name: name for name in ("beta", "label_smoothing", "cpo_alpha", "simpo_gamma")},
    "kto": _KTO,
    "reward": {"center_rewards_coefficient": "center_rewards_coefficient"},
}
#: system → algorithm → our option → theirs
OPTIONS_OF: dict[str, dict[str, dict[str, str]]] = {
    "trl": _OF_TRL,
    "llamafactory": _OF_LLAMAFACTORY,
    "axolotl": _OF_AXOLOTL,
    "swift": _OF_SWIFT,
}
ROLLOUT_OF_TRL = _ROLLOUT
#: algorithms of each system, by ours
ALGORITHMS_OF: dict[str, dict[str, str]] = {
    "trl": {name: name for name in ("sft", "dpo", "kto", "reward", "grpo", "rloo")},
    "llamafactory": {"sft": "sft", "dpo": "dpo", "orpo": "dpo", "simpo": "dpo", "kto": "kto", "reward": "rm"},
    "axolotl": {"sft": "", "dpo": "dpo", "orpo": "orpo", "simpo": "simpo", "kto": "kto", "reward": ""},
    "swift": {
        "sft": "",
        "reward": "rm",
        **{name: name for name in ("dpo", "orpo", "cpo", "simpo", "kto")},
    },
}

#: What every file names, the system's own default or not
ALWAYS = frozenset(
    {
        *(
            "model_name_or_path",
            "base_model",
            "model",
            "learning_rate",
            "lr_scheduler_type",
            "num_train_epochs",
        ),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "seed", "bf16", "fp16"),
        *(
            "max_length",
            "cutoff_len",
            "output_dir",
            "dataset_dir",
            "gradient_checkpointing",
            "loss_type",
            *("stage", "optimizer", "lr_scheduler", "tuner_type", "torch_dtype", "rlhf_type"),
        ),
    }
)
_OPTIMIZERS = {
    "muon": "adamw_torch",
    "adamw_bf16_rounding": "adamw_torch",
    "paged_adamw": "paged_adamw_32bit",
}
_SCHEDULES = {
    "warmup_lr": "constant_with_warmup",
    "warmup_decay_lr": "linear",
    "warmup_cosine_lr": "cosine",
    "one_cycle": "linear",
    "lr_range_test": "constant",
}
_OF_TRANSFORMERS = {"training.optim": _OPTIMIZERS, "training.lr_scheduler_type": _SCHEDULES}
#: system → our path → our word → the nearest word there, where ours is none of its own
WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "trl": _OF_TRANSFORMERS,
    "llamafactory": _OF_TRANSFORMERS,
    "swift": _OF_TRANSFORMERS,
    "axolotl": {
        "training.optim": {k: v for k, v in _OPTIMIZERS.items() if k != "muon"},
        "training.lr_scheduler_type": _SCHEDULES,
    },
}
