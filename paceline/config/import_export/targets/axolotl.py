"""axolotl's keys that are not renamed one to one: data sets with their prompt styles, and special words."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.import_export.targets.given import (
    Given,
    form_of,
    loader_of,
    present,
    reads_as_they_are,
    written_sets,
)
from paceline.config.import_export.targets.names import ALGORITHMS_OF
from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

# axolotl's words for data.on_too_long
_TOO_LONG = {"skip": "drop", "truncate": "truncate", "refuse": "raise"}
_TURNS: JsonObject = {"type": "chat_template", "field_messages": "messages"}
#: form of rows that this program's own reader wrote → how axolotl reads them
_TYPES: dict[str, JsonObject] = {
    "text": {"type": "completion", "field": "text"},
    "messages": _TURNS,
    "completion": _TURNS,
    "pairs": {
        "type": "chat_template.default",
        "field_messages": "messages",
        "field_chosen": "chosen",
        "field_rejected": "rejected",
    },
}
#: its trainers that read pairs as turns
_PAIRED = ("dpo", "simpo")
_KINDS = {"alpaca": "alpaca", "text": "completion"}
#: forms of rows that axolotl reads as this program does
READ = {"sft": ("text", "messages")}


def axolotl(config: Config, given: Given) -> JsonObject:
    """Return the keys that combine several of ours."""
    data, training = config.data, config.training
    steps = training.warmup_steps
    whole = steps >= 1 or not steps
    by_steps = training.eval_strategy == "steps"
    name = config.model.attn_implementation
    packs = training.algorithm == "sft" and data.packing and training.eval_strategy != "no"
    keys: JsonObject = {
        "rl": ALGORITHMS_OF["axolotl"][training.algorithm] or None,
        "reward_model": True if training.algorithm == "reward" else None,
        **_data(config, given),
        "sample_packing": data.packing if training.algorithm == "sft" else None,
        # few rows to evaluate make no packed row there; and without packed ones axolotl drops the last rows
        "eval_sample_packing": False if packs else None,
        "dataloader_drop_last": training.dataloader_drop_last if packs else None,
        "train_on_inputs": data.train_on == "all",
        "excess_length_strategy": _TOO_LONG[data.on_too_long],
        "attn_implementation": None if name == "auto" else name,
        "chat_template": "jinja" if config.model.chat_template and not given.model else "tokenizer_default",
        "warmup_steps": int(steps) if whole else None,
        "warmup_ratio": None if whole else steps,
        "save_steps": training.save_steps if training.save_strategy == "steps" else None,
        "eval_steps": (training.eval_steps or training.logging_steps) if by_steps else None,
        "use_tensorboard": True if "tensorboard" in training.report_to else None,
        **(_adapter(config) if config.lora else {}),
    }
    return present(keys)


def _adapter(config: Config) -> JsonObject:
    lora = config.lora
    assert lora is not None
    every, bits = lora.target_modules == ("all-linear",), lora.quantization_bit
    return {
        "adapter": "qlora" if bits else "lora",
        "lora_alpha": lora.alpha if lora.alpha is not None else 2 * lora.r,
        "lora_target_linear": True if every else None,
        "lora_target_modules": None if every else list(lora.target_modules),
        **({f"load_in_{bits}bit": True} if bits else {}),
    }


def _data(config: Config, given: Given) -> JsonObject:
    data = config.data
    form, word = given.form_of(config), ALGORITHMS_OF["axolotl"][config.training.algorithm]
    if form == "labelled" or (form == "pairs" and word not in _PAIRED):
        raise ConfigError(
            codes.CONFIG_EXPORT(
                f"axolotl reads rows for {config.training.algorithm} in prompt styles of its own",
                "training.algorithm",
                config.training.algorithm,
                "trl or llamafactory",
            )
        )
    if given.rows:
        written = {part: [_written(given, path)] for part, path in written_sets(given, config)}
        return {"datasets": written["train"], "test_datasets": written.get("test")}
    return {
        "datasets": [_set(d) for d in data.train],
        "test_datasets": [_set(d) for d in data.eval] if data.eval else None,
    }


def _written(given: Given, path: str) -> Json:
    return {"path": path, "ds_type": "json", "split": "train", **_TYPES.get(given.form, _TURNS)}


def _set(data_set: Dataset) -> Json:
    loader, form = loader_of(data_set.path), form_of(data_set) or data_set.format
    return present(
        {
            "path": data_set.path,
            "ds_type": loader,
            "type": _KINDS.get(form, "chat_template"),
            "field_messages": "conversations" if form == "sharegpt" else None,
            "split": data_set.split,
            "name": data_set.name,
        }
    )


def rows_wanted(config: Config) -> bool:
    """Whether the rows must be rewritten as turns for axolotl's chat template."""
    local = bool(config.data.train) and all(loader_of(d.path) for d in config.data.train)
    alike = reads_as_they_are(
        [*config.data.train, *(config.data.eval or ())], READ.get(config.training.algorithm, ())
    )
    return local and not alike
