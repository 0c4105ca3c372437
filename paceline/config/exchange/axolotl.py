"""axolotl's config (0.19), and older names that its files still have."""

from __future__ import annotations

from paceline.config.exchange.axolotl_adapter import adapter
from paceline.config.exchange.axolotl_algorithms import algorithm_of
from paceline.config.exchange.axolotl_data import datasets
from paceline.config.exchange.axolotl_machine import attention, checkpointing, parallel, trackers
from paceline.config.exchange.axolotl_off import switched
from paceline.config.exchange.axolotl_schedule import schedule
from paceline.config.exchange.common import by_alias, whole_weights_in
from paceline.config.exchange.low_rank import transformers_galore
from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.tables import defaults
from paceline.core.json_types import Json

_TOP = (
    "AxolotlInputConfig",
    "ModelInputConfig",
    "ModelOutputConfig",
    "LoraConfig",
    "ReLoRAConfig",
    "HyperparametersConfig",
    "WandbConfig",
    "DeprecatedParameters",
    "RemappedParameters",
    "JaggedLRConfig",
)
_SAME = {
    "base_model": "model.name_or_path",
    "revision_of_model": "model.revision",
    "tokenizer_config": "model.tokenizer",
    "trust_remote_code": "model.trust_remote_code",
    "sequence_len": "data.max_length",
    "micro_batch_size": "training.per_device_train_batch_size",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "num_epochs": "training.num_train_epochs",
    "max_steps": "training.max_steps",
    "learning_rate": "training.learning_rate",
    "weight_decay": "training.weight_decay",
    "adam_beta1": "training.adam_beta1",
    "adam_beta2": "training.adam_beta2",
    "adam_epsilon": "training.adam_epsilon",
    "adam_eps": "training.adam_epsilon",
    "max_grad_norm": "training.max_grad_norm",
    "optimizer": "training.optim",
    "seed": "training.seed",
    "output_dir": "training.output_dir",
    "ddp_timeout": "training.ddp_timeout",
    "ddp_bucket_cap_mb": "training.ddp_bucket_cap_mb",
    "ddp_broadcast_buffers": "training.ddp_broadcast_buffers",
    "ddp_find_unused_parameters": "training.ddp_find_unused_parameters",
    "dataloader_num_workers": "training.dataloader_num_workers",
    "dataloader_pin_memory": "training.dataloader_pin_memory",
    "dataloader_prefetch_factor": "training.dataloader_prefetch_factor",
    "dataloader_drop_last": "training.dataloader_drop_last",
    "dataset_processes": "data.num_proc",
    "dataset_num_proc": "data.num_proc",
    "torch_compile": "training.torch_compile",
    "torch_compile_backend": "training.torch_compile_backend",
    "torch_compile_mode": "training.torch_compile_mode",
    "chat_template_kwargs": "model.chat_template_kwargs",
    "deepspeed": "training.deepspeed",
    "metric_for_best_model": "training.metric_for_best_model",
    "greater_is_better": "training.greater_is_better",
    "early_stopping_patience": "training.early_stopping_patience",
    "logging_steps": "training.logging_steps",
    "optim_args": "training.optim_args",
    "optim_target_modules": "training.optim_target_modules",
    "lr_scheduler_kwargs": "training.lr_scheduler_kwargs",
}


_WATCHDOG = "paceline.extend:LossWatchdog"  # what stops a run there after three steps, too


def axolotl_defaults() -> dict[str, object]:
    """Return the defaults of its top-level keys that the builder passes on."""
    return defaults("axolotl") | defaults("axolotl", _TOP)


def translate(reading: KeyReader) -> None:
    """Decide every key of an axolotl file."""
    for key in [key for key, value in reading.given.items() if value in (None, "")]:
        reading.nothing(key, "it has no value")
    algorithm = algorithm_of(reading)
    for key, path in _SAME.items():
        value = reading.given.get(key)
        if value is None or value == "" or reading.decided(key):
            continue
        reading.keep(key, path, value)
    _defaults(reading)
    schedule(reading)
    _precision(reading)
    attention(reading)
    adapter(reading)
    datasets(reading, algorithm)
    parallel(reading)
    trackers(reading)
    _watchdog(reading)
    switched(reading)
    checkpointing(reading)
    for key in reading.open_keys():
        by_alias(reading, key)


def _defaults(reading: KeyReader) -> None:
    """axolotl's own defaults where ours are others (read off its schema and its builder)."""
    written: dict[str, Json] = {
        "sequence_len": 512,
        "micro_batch_size": 1,
        "num_epochs": 1.0,
        "optimizer": "adamw_torch_fused",
    }
    transformers_galore(reading, "optimizer")
    for key, value in written.items():
        if not reading.is_given(key):
            reading.set(_SAME[key], reading.defaults.get(key, value), key)  # type: ignore[arg-type]
    size = reading.given.get("eval_batch_size") or reading.value("micro_batch_size")
    reading.set("training.per_device_eval_batch_size", size, "eval_batch_size")
    reading.mapped("eval_batch_size", ("training.per_device_eval_batch_size",))
    if not reading.is_given("save_total_limit"):
        reading.set("training.save_total_limit", 4, "save_total_limit")
    else:
        reading.keep("save_total_limit", "training.save_total_limit", reading.given["save_total_limit"])


def _watchdog(reading: KeyReader) -> None:
    """A threshold of the loss: without one its patience has no effect."""
    threshold, patience = "loss_watchdog_threshold", "loss_watchdog_patience"
    if not reading.on(threshold):
        return
    options: dict[str, Json] = {"threshold": reading.given[threshold]}
    if reading.is_given(patience):
        options["patience"] = reading.given[patience]
    written: list[Json] = [{"name": _WATCHDOG, "options": options}]
    reading.set("training.callbacks", written, threshold)
    reading.mapped((threshold, patience), ("training.callbacks",))


def _precision(reading: KeyReader) -> None:
    bf16, adapters = reading.value("bf16"), reading.is_given("adapter")
    fp16 = (reading.on("fp16") or reading.on("float16")) and reading.given.get("bf16") in (
        None,
        False,
        "auto",
    )
    word = (
        "fp16"
        if fp16
        else "no"
        if bf16 is False and not reading.on("bfloat16")
        else "auto"
        if bf16 == "auto"
        else "bf16"
    )
    key = "fp16" if fp16 else "bf16"
    reading.set("training.mixed_precision", word, key)
    dtype = {"fp16": "float16", "bf16": "bfloat16", "auto": "bfloat16"}.get(word)
    keys = ("bf16", "fp16", "bfloat16", "float16", "float32", "torch_dtype")
    given = [name for name in keys if reading.given.get(name) and not (fp16 and name == "bf16")] or ["bf16"]
    if dtype and adapters:
        reading.set("model.dtype", dtype, key)
    elif dtype:
        for name in given:
            whole_weights_in(reading, name, dtype, "axolotl")
    reading.mapped([name for name in keys if not reading.decided(name)], ("training.mixed_precision",))
    if word != "no":
        reading.nothing(
            "tf32",
            "matrix products are in half precision already; the few float32 ones keep their full precision",
        )
    elif not reading.on("tf32"):
        reading.nothing("tf32", "off, as here")
