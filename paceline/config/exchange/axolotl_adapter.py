"""axolotl's adapters and quantised weights."""

from __future__ import annotations

from paceline.config.exchange.reading import KeyReader

_LORA = {
    "lora_r": "lora.r",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "lora_modules_to_save": "lora.modules_to_save",
    "lora_target_parameters": "lora.target_parameters",
    "lora_model_dir": "lora.adapter_name_or_path",
}
_NOT_BUILT = {
    "peft_use_dora": "DoRA is not supported",
    "peft_layers_to_transform": "adapters on some layers alone are not supported",
    "peft_layer_replication": "replicated layers are not supported",
    "peft_init_lora_weights": "adapters begin at zero, or as PiSSA's and OLoRA's (pissa, olora)",
    "peft": "LoftQ's initial weights are not supported",
    "loraplus_lr_ratio": "LoRA+ is not supported: both factors use one learning rate",
    "lora_rank_pattern": "one rank for all adapters is what is supported",
    "lora_alpha_pattern": "one alpha for all adapters is what is supported",
    "peft_trainable_token_indices": "lora.modules_to_save trains whole embeddings",
    "unfrozen_parameters": "training some of the weights in full is not supported",
    "relora": "ReLoRA is not supported",
    "gptq": "GPTQ bases are not trained; set quantization_bit: 4",
    "lisa_n_layers": "LISA is not supported",
}
_WITH = {
    "relora": ("relora_", "jagged_"),
    "lisa_n_layers": ("lisa_",),
    "gptq": ("gptq_",),
    "loraplus_lr_ratio": ("loraplus_",),
}


def adapter(reading: KeyReader) -> None:
    """Decide the keys of adapters."""
    kind = reading.text("adapter")
    quantised = ("load_in_4bit", "load_in_8bit")
    bits = 4 if reading.on("load_in_4bit") else 8 if reading.on("load_in_8bit") else None
    if kind in ("lora", "qlora"):
        reading.mapped("adapter", ("lora",))
        for key, path in _LORA.items():
            if reading.is_given(key):
                reading.keep(key, path, reading.given[key])
        if not reading.is_given("lora_r"):
            reading.set("lora.r", 8, "lora_r", "peft's default")
        if not reading.is_given("lora_alpha"):
            reading.set("lora.alpha", 8, "lora_alpha", "peft's default")
        _targets(reading)
        if (init := reading.value("peft_init_lora_weights")) in (True, "pissa", "olora"):
            reading.keep("peft_init_lora_weights", "lora.init_lora_weights", init)
        if reading.on("peft_use_rslora"):
            reading.keep("peft_use_rslora", "lora.use_rslora", True)
        if bits:
            reading.set("lora.quantization_bit", bits, f"load_in_{bits}bit")
            reading.mapped(quantised, ("lora.quantization_bit",))
    elif kind:
        reading.lose("adapter", f"{kind} is not supported: lora or qlora")
    else:
        reading.nothing(
            [k for k in reading.given if k.startswith("lora_")], "adapter is empty: all weights are trained"
        )
        reading.nothing("adapter", "all weights are trained")
    if not bits:
        reading.nothing(quantised, "the weights are not quantised")
    _quantised(reading)
    _options(reading)


def _targets(reading: KeyReader) -> None:
    names = reading.given.get("lora_target_modules")
    if reading.on("lora_target_linear"):
        reading.set("lora.target_modules", "all-linear", "lora_target_linear")
    elif names:
        reading.set("lora.target_modules", names, "lora_target_modules")
    else:
        reading.set(
            "lora.target_modules",
            ["q_proj", "v_proj"],
            "lora_target_modules",
            "peft's choice for Llama, Mistral and Qwen2",
        )
    reading.mapped(("lora_target_linear", "lora_target_modules"), ("lora.target_modules",))


def _quantised(reading: KeyReader) -> None:
    config = reading.given.get("bnb_config_kwargs")
    for key, value in config.items() if isinstance(config, dict) else ():
        name = f"bnb_config_kwargs.{key}"
        if key == "bnb_4bit_use_double_quant":
            reading.keep(name, "lora.double_quant", value)
        elif key == "bnb_4bit_quant_type":
            reading.keep(name, "lora.quantization_type", value)
        elif key in ("bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "llm_int8_has_fp16_weight"):
            reading.nothing(name, "compute and storage follow training.mixed_precision")
    if isinstance(config, dict):
        reading.mapped("bnb_config_kwargs", ("lora.double_quant",))


def _options(reading: KeyReader) -> None:
    for key, why in _NOT_BUILT.items():
        prefixes = _WITH.get(key, (f"{key}.",))
        keys = [k for k in reading.given if k == key or k.startswith(prefixes)]
        if reading.decided(key):
            continue
        if not reading.on(key):
            reading.nothing([k for k in keys if not reading.decided(k)], f"{key} is off")
            continue
        for name in keys:
            reading.lose(name, why)
    kernels = (
        "lora_mlp_kernel",
        "lora_qkv_kernel",
        "lora_o_kernel",
        "lora_embedding_kernel",
        "lora_on_cpu",
        "qlora_sharded_model_loading",
        "lora_fan_in_fan_out",
        "peft_autocast_adapter_dtype",
        "merge_lora",
        "merge_method",
    )
    reading.nothing(
        [k for k in kernels if not reading.decided(k)], "another way to compute or load the same adapters"
    )
