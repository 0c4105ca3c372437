"""Keys of other systems that are made of several of ours: precision, adapters, data, packing, loss."""

from __future__ import annotations

from paceline.config.import_export.export_names import ALGORITHMS_OF
from paceline.config.schema import Config
from paceline.core.json_types import Json, JsonObject

_PURE_BF16: dict[str, JsonObject] = {
    "trl": {"dtype": "bfloat16", "bf16": True},
    "llamafactory": {"pure_bf16": True, "bf16": False},
    "axolotl": {"bf16": True},
}
_ATTENTION = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}


def made_keys(config: Config, system: str) -> JsonObject:
    """Return the keys of ``system`` that need more than a name."""
    found = _precision(config, system) | (_adapter(config, system) if config.lora is not None else {})
    if system == "trl":
        return found | _trl(config)
    return found | (_llamafactory(config) if system == "llamafactory" else _axolotl(config))


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
        found: JsonObject = {"use_peft": True, "lora_alpha": alpha}
        found["lora_target_modules"] = "all-linear" if every else list(lora.target_modules)
        if bits:
            found |= {f"load_in_{bits}bit": True, "bnb_4bit_quant_type": lora.quantization_type}
            found["use_bnb_nested_quant"] = lora.double_quant
        return found
    if system == "llamafactory":
        found = {"finetuning_type": "lora", "lora_alpha": alpha}
        found["lora_target"] = "all" if every else ",".join(lora.target_modules)
        if lora.modules_to_save:
            found["additional_target"] = ",".join(lora.modules_to_save)
        if bits:
            found |= {"quantization_bit": bits, "quantization_type": lora.quantization_type}
            found["double_quantization"] = lora.double_quant
        if lora.init_lora_weights == "pissa":
            found |= {"pissa_init": True, "pissa_iter": -1}
        return found
    found = {"adapter": "qlora" if bits else "lora", "lora_alpha": alpha}
    found |= {"lora_target_linear": True} if every else {"lora_target_modules": list(lora.target_modules)}
    return found | ({f"load_in_{bits}bit": True} if bits else {})


def _trl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    found: JsonObject = {}
    sets = [{"path": d.path, "split": d.split} | ({"name": d.name} if d.name else {}) for d in data.train]
    weights = [d.weight for d in data.train]
    if len(sets) == 1 and weights == [1.0]:
        found |= {"dataset_name": sets[0]["path"], "dataset_train_split": sets[0]["split"]}
        found |= {"dataset_config": sets[0]["name"]} if "name" in sets[0] else {}
    elif sets:
        found["datasets"] = [item | {"fraction": weight} for item, weight in zip(sets, weights, strict=True)]
    if data.eval:
        found["dataset_test_split"] = data.eval[0].split
    if config.model.attn_implementation != "auto":
        found["attn_implementation"] = config.model.attn_implementation
    if training.algorithm == "sft":
        found |= {"packing": data.packing, "assistant_only_loss": data.train_on != "all"}
        found |= {"completion_only_loss": False} if data.train_on == "all" else {}
    else:
        found["disable_dropout"] = training.disable_dropout
    found["lora_dropout"] = config.lora.dropout or 0.0 if config.lora else None
    return {key: value for key, value in found.items() if value is not None}


def _llamafactory(config: Config) -> JsonObject:
    data, training = config.data, config.training
    algorithm = training.algorithm
    found: JsonObject = {"stage": ALGORITHMS_OF["llamafactory"][algorithm], "do_train": True}
    if config.lora is None:
        found["finetuning_type"] = "full"
    if algorithm in ("orpo", "simpo"):
        found["pref_loss"] = algorithm
    found |= {"dataset": ",".join(d.path for d in data.train), "dataset_dir": "."} if data.train else {}
    found |= {"eval_dataset": ",".join(d.path for d in data.eval)} if data.eval else {}
    limits = {d.max_rows for d in data.train}
    if len(limits) == 1 and None not in limits:
        found["max_samples"] = limits.pop()
    found |= {"neat_packing": True} if data.packing else {"packing": False}
    found |= {"train_on_prompt": True} if data.train_on == "all" else {}
    found["disable_gradient_checkpointing"] = not training.gradient_checkpointing
    if (kernel := _ATTENTION.get(config.model.attn_implementation)) is not None:
        found["flash_attn"] = kernel
    return found


def _axolotl(config: Config) -> JsonObject:
    data, training = config.data, config.training
    rl = ALGORITHMS_OF["axolotl"][training.algorithm]
    found: JsonObject = {"rl": rl} if rl else {}
    if training.algorithm == "reward":
        found["reward_model"] = True
    found["datasets"] = [_set(d.path, d.name, d.split, d.format) for d in data.train]
    found["train_on_inputs"] = data.train_on == "all"
    words = {"skip": "drop", "truncate": "truncate", "refuse": "raise"}
    found["excess_length_strategy"] = words[data.on_too_long]
    if config.model.attn_implementation != "auto":
        found["attn_implementation"] = config.model.attn_implementation
    steps = training.warmup_steps
    found["warmup_steps" if steps >= 1 or not steps else "warmup_ratio"] = (
        int(steps) if steps >= 1 or not steps else steps
    )
    if training.save_strategy == "steps":
        found["save_steps"] = training.save_steps
    if training.eval_strategy == "steps":
        found["eval_steps"] = training.eval_steps or training.logging_steps
    if "tensorboard" in training.report_to:
        found["use_tensorboard"] = True
    return found


def _set(path: str, name: str | None, split: str, kind: str) -> Json:
    types = {"text": "completion", "alpaca": "alpaca"}
    found: JsonObject = {"path": path, "type": types.get(kind, "chat_template"), "split": split}
    return found | ({"name": name} if name else {})
