"""ms-swift's arguments (4.6): its JSON and YAML files, and the flags of `swift sft` and `swift rlhf`."""

from __future__ import annotations

from paceline.config.exchange.common import CHUNKED, KERNEL, LOGGED, transformers_keys, whole_weights_in
from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.tables import NO_TRACKERS, defaults
from paceline.core.json_types import Json, JsonObject

_RLHF = {
    "dpo": "dpo",
    "kto": "kto",
    "rm": "reward",
    "grpo": "grpo",
    "ppo": "ppo",
    "orpo": "orpo",
    "simpo": "simpo",
    "cpo": "cpo",
}
_OPTIONS = {
    "dpo": ("beta", "loss_type", "label_smoothing", "rpo_alpha"),
    "kto": ("beta", "loss_type", "desirable_weight", "undesirable_weight"),
    "cpo": ("beta", "cpo_alpha", "loss_type"),
    "simpo": ("beta", "simpo_gamma", "cpo_alpha"),
    "orpo": ("beta",),
    "reward": ("center_rewards_coefficient",),
    "grpo": ("beta", "epsilon", "epsilon_high", "delta", "loss_type", "num_iterations", "scale_rewards"),
}
_ROLLOUT = ("num_generations", "max_completion_length", "temperature", "top_p", "top_k")


def swift_defaults() -> dict[str, object]:
    """Return the defaults of its arguments, Transformers' below them."""
    own = {"report_to": "tensorboard", "ddp_timeout": 18000000}
    return {**defaults("transformers"), **defaults("swift"), **NO_TRACKERS, **own}


def translate(reading: KeyReader, algorithm: str | None = None) -> None:
    """Decide every key of an ms-swift file or command line."""
    word = reading.text("rlhf_type")
    chosen = _RLHF.get(word, algorithm if algorithm in _OPTIONS else "sft")
    reading.set("training.algorithm", chosen, "rlhf_type")
    reading.mapped("rlhf_type", ("training.algorithm",)) if word in _RLHF else None
    _model(reading)
    adapters = _tuner(reading)
    if not reading.is_given("learning_rate"):
        reading.set("training.learning_rate", 1e-4 if adapters else 1e-5, "learning_rate")
    _data(reading)
    for option in _OPTIONS.get(chosen, ()):
        if reading.is_given(option):
            reading.keep(option, f"training.{chosen}.{option}", reading.given[option])
    if chosen in ("grpo", "ppo"):
        for option in _ROLLOUT:
            if reading.is_given(option):
                reading.keep(option, f"training.rollout.{option}", reading.given[option])
        if reading.is_given("reward_funcs"):
            reading.lose(
                "reward_funcs", "reward functions are written as training.rollout.rewards (docs/rollouts.md)"
            )
    for key in ("eval_strategy", "eval_steps"):
        if not reading.on("split_dataset_ratio") and not reading.is_given("val_dataset"):
            reading.nothing(key, "nothing is evaluated: no rows are held out")
    memory = (
        "lazy_tokenize",
        "packing_num_proc",
        "load_from_cache_file",
        "vit_gradient_checkpointing",
        "streaming_buffer",
        "download_mode",
    )
    reading.nothing(memory, CHUNKED)
    reading.nothing(
        [
            k
            for k in reading.given
            if k.startswith(
                ("swanlab_", "add_version", "create_checkpoint_symlink", "model_name", "model_author")
            )
        ],
        LOGGED,
    )
    reading.nothing(
        [k for k in reading.given if k.startswith(("freeze_vit", "freeze_aligner", "max_pixels", "vit_"))],
        "the rows have no images",
    )
    reading.nothing(("attn_impl", "experts_impl"), KERNEL) if reading.text("attn_impl") not in (
        "flash_attn",
        "sdpa",
        "eager",
    ) else None
    transformers_keys(reading)


def _model(reading: KeyReader) -> None:
    for key in ("model", "model_id_or_path"):
        if reading.is_given(key):
            reading.keep(key, "model.name_or_path", reading.given[key])
    reading.nothing(
        ("model_type", "task_type", "use_hf", "load_args", "tuner_backend"),
        "it follows from the model's files",
    )
    word = reading.text("torch_dtype")
    if word:
        adapters = reading.text("tuner_type") == "lora"
        if adapters:
            reading.keep("torch_dtype", "model.dtype", word, "of the frozen weights; adapters are float32")
        else:
            whole_weights_in(reading, "torch_dtype", word, "ms-swift")
        precision = {"bfloat16": "bf16", "float16": "fp16"}.get(word, "no")
        if not reading.is_given("bf16") and not reading.is_given("fp16"):
            reading.set("training.mixed_precision", precision, "torch_dtype")
            reading.result.findings.pop("bf16", None)
            reading.given.setdefault("bf16", precision == "bf16")
            reading.given.setdefault("fp16", precision == "fp16")
    attention = {"flash_attn": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}.get(
        reading.text("attn_impl")
    )
    if attention and reading.is_given("attn_impl"):
        reading.keep("attn_impl", "model.attn_implementation", attention)
    stage = reading.text("deepspeed")
    if stage.startswith("zero") and len(stage) == 5:
        reading.keep("deepspeed", "training.distributed_strategy", stage)
    if reading.is_given("system"):
        reading.lose("system", "a default system turn belongs into model.chat_template, or into the rows")
    if reading.is_given("template"):
        reading.nothing("template", "ms-swift takes the model's own template; the tokenizer's is used")


def _tuner(reading: KeyReader) -> bool:
    key = next((k for k in ("tuner_type", "train_type", "sft_type") if reading.is_given(k)), "tuner_type")
    kind = reading.text(key) or "lora"
    if kind == "full":
        reading.nothing(key, "all weights are trained where there is no lora section")
        reading.nothing(
            [k for k in reading.given if k.startswith("lora_") or k in ("target_modules", "use_rslora")],
            "all weights are trained",
        )
        return False
    if kind != "lora":
        reading.lose(key, f"{kind} is not supported: lora or full")
        return False
    reading.mapped(key, ("lora",))
    reading.keep("lora_rank", "lora.r", reading.value("lora_rank"))
    alpha = reading.value("lora_alpha")
    reading.keep("lora_alpha", "lora.alpha", int(alpha) if isinstance(alpha, float) else alpha)
    reading.keep("lora_dropout", "lora.dropout", reading.value("lora_dropout"))
    targets = reading.value("target_modules")
    every = targets in ("all-linear", ["all-linear"])
    reading.keep("target_modules", "lora.target_modules", "all-linear" if every else targets)
    if reading.is_given("adapters"):
        reading.keep("adapters", "lora.adapter_name_or_path", reading.given["adapters"])
    if reading.is_given("quant_bits"):
        reading.keep("quant_bits", "lora.quantization_bit", reading.given["quant_bits"])
        reading.mapped("quant_method", ("lora.quantization_bit",))
    return True


def _data(reading: KeyReader) -> None:
    for key, path in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        value = reading.given.get(key)
        listed = value if isinstance(value, list) else [value] if value else []
        if listed:
            reading.keep(key, path, [_one(str(item)) for item in listed])
    if reading.on("split_dataset_ratio"):
        reading.keep("split_dataset_ratio", "data.validation_split", reading.value("split_dataset_ratio"))
    else:
        reading.nothing("split_dataset_ratio", "no rows are held out")
    reading.keep("packing", "data.packing", reading.on("packing"))
    reading.nothing("padding_free", "padding never weighs anything")
    scale = reading.text("loss_scale") or "default"
    if scale in ("default", "all"):
        reading.keep("loss_scale", "data.train_on", "all" if scale == "all" else "assistant")
    strategy = reading.text("truncation_strategy")
    words = {"delete": "skip", "right": "truncate", "raise": "refuse"}
    if strategy in words:
        reading.keep("truncation_strategy", "data.on_too_long", words[strategy])
    else:
        reading.set(
            "data.on_too_long", "skip", "truncation_strategy", "ms-swift leaves longer rows out by default"
        )
    if reading.value("dataset_shuffle") is not False:
        reading.nothing("dataset_shuffle", "rows are permuted by seed")


def _one(name: str) -> Json:
    """``path:subset#rows`` as one of our data sets."""
    path, _, rows = name.partition("#")
    found: JsonObject = {"path": path}
    if rows.isdecimal():
        found["max_rows"] = int(rows)
    return found
