"""LLaMA-Factory's keys that are not renamed one to one: `dataset_info.json`, template, special words."""

from __future__ import annotations

import json
import os

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.programs.llamafactory_templates import jinja
from paceline.config.import_export.targets.given import Given, form_of, loader_of, present
from paceline.config.import_export.targets.names import ALGORITHMS_OF
from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.core.json_types import Json, JsonObject, as_object

_ATTENTION = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}
INFO = "dataset_info.json"
_OPENAI: JsonObject = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}
#: form of rows → their entry; Alpaca's own columns are the default
_ENTRIES: dict[str, JsonObject] = {
    "alpaca": {},
    "completion": {"columns": {"prompt": "prompt", "response": "completion"}},
    "text": {"columns": {"prompt": "text"}},
    "sharegpt": {"formatting": "sharegpt", "columns": {"messages": "conversations"}},
    "messages": {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": _OPENAI},
    "pairs": {
        "ranking": True,
        "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    },
    "labelled": {"columns": {"prompt": "prompt", "response": "completion", "kto_tag": "label"}},
}
#: our column of an Alpaca row → its name there
_COLUMNS = {"instruction": "prompt", "input": "query", "output": "response", "system": "system"}


def llamafactory(config: Config, given: Given) -> JsonObject:
    """Return the keys that combine several of ours, and add ``dataset_info.json``."""
    data, algorithm = config.data, config.training.algorithm
    text = algorithm == "sft" and given.form_of(config) == "text"
    limits = {d.max_rows for d in data.train}
    evaluated = config.training.eval_strategy != "no" or config.training.eval_on_start
    keys: JsonObject = {
        "stage": "pt" if text else ALGORITHMS_OF["llamafactory"][algorithm],
        "do_train": True,
        "finetuning_type": "full" if config.lora is None else "lora",
        "pref_loss": algorithm if algorithm in ("orpo", "simpo") else None,
        **_data(config, given, evaluated),
        "val_size": data.validation_split if evaluated else None,
        "max_samples": limits.pop() if len(limits) == 1 else None,
        "neat_packing": True if data.packing and algorithm == "sft" else None,
        "packing": None if data.packing and algorithm == "sft" else False,
        "train_on_prompt": True if data.train_on == "all" and not text else None,
        "disable_gradient_checkpointing": not config.training.gradient_checkpointing,
        "flash_attn": _ATTENTION.get(config.model.attn_implementation),
        "template": _template(config),
    }
    return present(keys | (_adapter(config) if config.lora else {}))


def _adapter(config: Config) -> JsonObject:
    lora = config.lora
    assert lora is not None
    bits, pissa = lora.quantization_bit, lora.init_lora_weights == "pissa"
    every = lora.target_modules == ("all-linear",)
    return {
        "lora_alpha": lora.alpha if lora.alpha is not None else 2 * lora.r,
        "lora_target": "all" if every else ",".join(lora.target_modules),
        "additional_target": ",".join(lora.modules_to_save) or None,
        "quantization_bit": bits or None,
        "quantization_type": lora.quantization_type if bits else None,
        "double_quantization": lora.double_quant if bits else None,
        "pissa_init": True if pissa else None,
        "pissa_iter": -1 if pissa else None,
    }


def _template(config: Config) -> str | None:
    """Return the name of the template whose formats equal ours; None: LLaMA-Factory uses the tokenizer's own
    template."""
    ours = config.model.chat_template
    known = as_object(table("llamafactory_templates")["templates"])
    return next((name for name, formats in known.items() if ours and jinja(as_object(formats)) == ours), None)


def _data(config: Config, given: Given, evaluated: bool) -> JsonObject:
    """List each data set in ``dataset_info.json``, next to the file."""
    data, entries = config.data, JsonObject()
    train = ",".join(_name(d, entries, given) for d in data.train)
    evals = ",".join(_name(d, entries, given) for d in data.eval or ()) if evaluated else ""
    if entries:
        given.beside(INFO, json.dumps(entries, indent=2) + "\n")
    weights: list[Json] = [d.weight for d in data.train]
    shares = len(set(weights)) > 1
    return {
        "dataset": train or None,
        "dataset_dir": given.folder if train else None,
        "eval_dataset": evals or None,
        "mix_strategy": "interleave_under" if shares else None,
        "interleave_probs": ",".join(str(w) for w in weights) if shares else None,
    }


def _name(data_set: Dataset, entries: JsonObject, given: Given) -> str:
    """Add the entry of a data set; return its name."""
    stem = os.path.basename(data_set.path).partition(".")[0] or "rows"
    name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(1, 1000))) if n not in entries)
    local = loader_of(data_set.path) is not None
    where: JsonObject = (
        {"file_name": os.path.relpath(data_set.path, given.folder)}
        if local
        else {"hf_hub_url": data_set.path, "subset": data_set.name}
    )
    split = None if data_set.split == "train" else data_set.split
    columns: JsonObject = {_COLUMNS.get(ours, ours): theirs for ours, theirs in data_set.columns.items()}
    form = _ENTRIES.get(form_of(data_set), {})
    described = {**form, **({"columns": {**as_object(form.get("columns")), **columns}} if columns else {})}
    entries[name] = present({**where, "split": split, **described})
    return name
