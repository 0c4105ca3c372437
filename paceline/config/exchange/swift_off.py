"""ms-swift's optional features: off, their keys have no effect; on, they cannot be kept."""

from __future__ import annotations

from paceline.config.exchange.common import KERNEL, LOGGED
from paceline.config.exchange.reading import KeyReader

#: switch → (the beginning of its keys, why it cannot be kept)
_SWITCHES = {
    "use_galore": ("galore_", "ms-swift's GaLore is not imported: set optim: galore_adamw"),
    "lisa_activated_layers": ("lisa_", "LISA is not supported"),
}
#: the beginning of keys that act each on its own → why they cannot be kept
_ALONE = {
    "enable_dft_loss": "the DFT loss is not supported",
    "early_stop_interval": "set early_stopping_patience",
    "max_epochs": "set num_train_epochs",
    "optimizer": "ms-swift's own optimizers are not supported; optim names others",
    "callbacks": "ms-swift's callbacks; ours are classes (docs/library.md)",
    "external_plugins": "ms-swift's plugins",
    "custom_register_path": "ms-swift's plugins",
    "custom_dataset_info": "name the files of the rows",
    "cached_dataset": "prepared rows of ms-swift: name the rows themselves",
    "cached_val_dataset": "prepared rows of ms-swift: name the rows themselves",
    "interleave_prob": "set a weight: on each data set",
    "model_kwargs": "variables that single models read",
    "rope_scaling": "set rope_scaling in the model's config.json",
    "max_model_len": "set the positions in the model's config.json",
    "init_strategy": "missing weights are drawn as Transformers draws them",
    "agent_template": "tools are written by the chat template",
    "model_name": "the names in the rows of swift/self-cognition",
    "model_author": "the names in the rows of swift/self-cognition",
    "freeze_parameters": "training some of the weights is not supported",
    "trainable_parameters": "training some of the weights is not supported",
    "freeze_llm": "a frozen language model is not supported",
    "aligner_lr": "one rate for all weights is what is supported",
    "vit_lr": "one rate for all weights is what is supported",
    "resume_only_model": "a resume goes on with the optimizer",
    "decision_": "the task decision is not supported",
    "mrl_dims": "embeddings are not trained",
    "disable_auto_column_mapping": "columns are recognised by name",
    "disable_ignore_empty_think": "empty thoughts are read as any text",
    "local_repo_path": "the model's code is Transformers'",
    "norm_bbox": "images are not read",
}
_TUNERS = ("fourier_", "boft_", "vera_", "adapter_", "adalora_", "llamapro_", "reft_")
_LOGS = (
    *("swanlab_", "enable_channel_loss", "log_completions", "log_entropy", "log_rollout_offpolicy_metrics"),
    *(
        "wandb_log_unique_prompts",
        "predict_with_generate",
        "eval_metric",
        "eval_use_evalscope",
        "eval_dataset",
    ),
    *("eval_limit", "eval_generation_config", "extra_eval_args", "use_flash_ckpt", "ignore_args_error"),
)
_INFERENCE = ("response_prefix", "enable_thinking", "stream", "logprobs", "top_logprobs", "template_backend")
_IMAGES = ("freeze_vit", "freeze_aligner", "max_pixels", "vit_gradient_checkpointing")


def switched(reading: KeyReader, command: str) -> None:
    """Decide the keys of optional features."""
    for switch, (beginning, why) in _SWITCHES.items():
        for key in [key for key in reading.open_keys() if key == switch or key.startswith(beginning)]:
            reading.lose(key, why) if reading.on(switch) else reading.nothing(key, f"{switch} is off")
    for beginning, why in _ALONE.items():
        for key in [key for key in reading.open_keys() if key.startswith(beginning)]:
            off = not reading.on(key) or reading.given[key] == reading.defaults.get(key)
            reading.nothing(key, "off, as here") if off else reading.lose(key, why)
    reading.nothing(
        [key for key in reading.open_keys() if key.startswith(_TUNERS)], "it belongs to another tuner_type"
    )
    reading.nothing([key for key in reading.open_keys() if key.startswith(_LOGS)], LOGGED)
    reading.nothing(_IMAGES, "the rows have no images")
    if command != "rlhf":
        reading.nothing(_INFERENCE, "it acts where answers are generated, not in this training")
        if reading.is_given("loss_type"):
            reading.lose("loss_type", "another loss for SFT is not supported")
    if reading.text("acc_strategy") == "seq":
        reading.lose("acc_strategy", "the loss is a mean over tokens, not over rows of means")
    else:
        reading.nothing("acc_strategy", "the loss is a mean over tokens, as here")
    reading.nothing(("use_logits_to_keep", "use_liger_kernel", "is_binary_loss_scale"), KERNEL)
    if reading.text("tuner_backend") in ("", "peft"):
        reading.nothing("tuner_backend", "adapters are peft's, as here")
    else:
        reading.lose("tuner_backend", "Unsloth is not used")
    if reading.value("add_non_thinking_prefix") is not False:
        reading.nothing("add_non_thinking_prefix", "the chat template writes it, or does not")
