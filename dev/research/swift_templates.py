#!/usr/bin/env python
"""Write ms-swift 4.6.0's chat templates, models and data sets by name, as data for ``config import``.

    python -m venv SW && SW/bin/pip install torch==2.13.0 && SW/bin/pip install ms-swift==4.6.0
    SW/bin/python dev/research/swift_templates.py

writes ``paceline/config/import_export/arguments/swift_templates.json``. ``own``: the class of a template that
treats texts by code of its own, which cannot be imported. ``does``: what such code does, where it was read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from swift.dataset.dataset_meta import DATASET_MAPPING, SubsetDataset
from swift.model import MODEL_MAPPING
from swift.model.model_meta import get_matched_model_meta, get_matched_model_types
from swift.template.base import Template
from swift.template.register import TEMPLATE_MAPPING

OUT = Path(__file__).parents[2] / "paceline/config/import_export/arguments/swift_templates.json"
#: Methods that decide what texts become; others are of images, or of answers
OF_TEXTS = frozenset(
    (
        *("_swift_encode", "_swift_prepare_inputs", "_get_system", "_preprocess_inputs", "_tokenize"),
        *("_add_non_thinking_prefix", "_remove_thinking_content", "_remove_history_thinking"),
        *("_get_enable_thinking", "_get_preserve_thinking", "_get_response_prefix", "_encode_truncated"),
        *("_simplify_context_list", "is_encoder_decoder", "loss_scale", "compute_sft_loss", "_truncate"),
        "_decision_fields",
    )
)
#: Classes that were read: what they do beside images, as far as conversations without tools know it
READ = {
    "GLM4Template": ["bare header"],
    "GLM4_5Template": ["bare header"],
    "Gemma3Template": ["system in question", "strips lines"],
    "Gemma3VisionTemplate": ["system in question", "strips lines"],
    "Qwen3_5Template": ["trims"],
    "DeepseekV3_1Template": ["after questions"],
    "Xing4_0Template": ["thinks"],
}
#: What prepares rows of the usual columns
PLAIN = ("AutoPreprocessor", "MessagesPreprocessor", "ResponsePreprocessor", "AlpacaPreprocessor", "NoneType")
FIELDS = ("prefix", "prompt", "chat_sep", "suffix", "system_prefix", "default_system", "auto_add_bos")
THINKING = ("is_thinking", "thinking_prefix", "non_thinking_prefix", "preserve_thinking")
DEFAULTS: dict[str, object] = {"suffix": [["eos_token_id"]]}


def main() -> None:
    """Write the table."""
    templates = {name: _template(meta) for name, meta in TEMPLATE_MAPPING.items()}
    models: dict[str, list[str]] = defaultdict(list)
    for name in _names():
        meta = get_matched_model_meta(name)
        if meta is not None and meta.template is not None:
            models[meta.template].append(name)
    types = {name: meta.candidate_templates for name, meta in MODEL_MAPPING.items()}
    written = {name for meta in MODEL_MAPPING.values() for name in meta.architectures or ()}
    architectures = {name: get_matched_model_types([name]) for name in sorted(written)}
    content = {
        "from": "ms-swift 4.6.0",
        "templates": templates,
        "models": {name: " ".join(listed) for name, listed in models.items()},
        "types": {name: listed[0] if len(listed) == 1 else listed for name, listed in types.items()},
        "architectures": {name: " ".join(listed) for name, listed in architectures.items()},
        "data": _data_sets(),
    }
    lines = [f" {json.dumps(key)}: {_lines(value)}" for key, value in content.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    rows = [f"  {json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n }"


def _data_sets() -> dict[str, dict[str, object]]:
    """Return what is known of a data set of ModelScope: its name on the hub, its parts, who prepares rows."""
    found: dict[str, dict[str, object]] = {}
    for meta in DATASET_MAPPING.values():
        parts = [part.name for part in meta.subsets if isinstance(part, SubsetDataset)]
        kind = type(meta.preprocess_func).__name__
        facts = {
            "hf": meta.hf_dataset_id,
            "parts": [] if parts == ["default"] else parts,
            "by": "" if kind in PLAIN else kind,
            "images": bool({"vision", "multi-modal", "video", "audio"} & set(meta.tags)),
        }
        for name in filter(None, (meta.ms_dataset_id, meta.hf_dataset_id)):
            found[name] = {key: value for key, value in facts.items() if value and value != name}
    return found


def _names() -> dict[str, None]:
    groups = [group for meta in MODEL_MAPPING.values() for group in meta.model_groups]
    models = [model for group in groups for model in group.models]
    ids = [name for m in models for name in (m.ms_model_id, m.hf_model_id, m.model_path) if name]
    return {name.rsplit("/", 1)[-1].lower(): None for name in ids}


def _template(meta: Any) -> dict[str, object]:
    kind = meta.template_cls
    between = kind.__mro__[: kind.__mro__.index(Template)]
    slots = [slot for name in (*FIELDS[:5], "system_prompt") for slot in getattr(meta, name, None) or ()]
    ids = {part for slot in slots if isinstance(slot, list) for part in slot} - {
        "bos_token_id",
        "eos_token_id",
    }
    overridden = OF_TEXTS & {name for each in between for name in vars(each)}
    if ids - {"bos_token_id", "eos_token_id"} or (kind.__name__ not in READ and overridden):
        return {"own": kind.__name__}
    found: dict[str, object] = {}
    for name in (*FIELDS, *THINKING, "history_thinking_prefix"):
        value = getattr(meta, name)
        kept = name == "preserve_thinking" and value is False
        if kept or (value not in (False, "", None) and value != DEFAULTS.get(name, ...)):
            found[name] = value
    if meta.is_post_system:
        found["system_prompt"] = meta.system_prompt
    stops = [word for word in meta.stop_words if isinstance(word, str)]
    if stops:
        found["stop_words"] = stops
    if kind.__name__ in READ:
        found["does"] = READ[kind.__name__]
    return found


if __name__ == "__main__":
    main()
