"""How a folder of sentence-transformers makes a text's vector, compared with how a run would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from paceline.config.schema import Config
from paceline.config.sections.algorithms.retrieval import EmbeddingOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import read_text
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan import codes

_KEY = "training.embedding"
#: Names of its versions → ours
_POOLINGS = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}


def check_pooling(config: Config) -> Iterator[Diagnostic]:
    """Yield embedding.folder: errors for what the config leaves to defaults, warnings for what it sets."""
    folder = Path(config.model.name_or_path or "").expanduser()
    modules = _read(folder / "modules.json")
    if config.model.config is not None or not isinstance(modules, list):
        return
    kinds = {str(as_object(m).get("type")).rsplit(".", 1)[-1]: str(as_object(m).get("path")) for m in modules}
    if "Pooling" not in kinds:
        return
    options = config.training.embedding or EmbeddingOptions()
    pooling = as_object(_read(folder / kinds["Pooling"] / "config.json") or {})
    modes = [_POOLINGS.get(name, name) for name in _modes(pooling)]
    made = {"pooling": "+".join(modes), "normalize": "Normalize" in kinds}
    for name, theirs in made.items():
        ours = getattr(options, name)
        if theirs in ("", ours):
            continue
        there, here = (str(value).lower() for value in (theirs, ours))
        known = name != "pooling" or there in _POOLINGS.values()
        yield codes.EMBEDDING_FOLDER(
            f"{_KEY}.{name}",
            f"{name}: {there} there, {here} here",
            hint=f"{name}: {there}"
            if known
            else f"{name}: {here}, to learn it anew: {there} is not supported",
            severity=Severity.WARNING if name in options.model_fields_set else Severity.ERROR,
        )
    about = as_object(_read(folder / "config_sentence_transformers.json") or {})
    for name, text in as_object(about.get("prompts") or {}).items():
        ours = {"query": config.data.query_prompt, "document": config.data.document_prompt}.get(name)
        if text and ours == "":
            quoted = json.dumps(text, ensure_ascii=False)
            yield codes.EMBEDDING_FOLDER(
                f"data.{name}_prompt",
                f"{quoted} there, none here",
                hint=f"{name}_prompt: {quoted}",
                severity=Severity.WARNING,
            )


def _modes(pooling: JsonObject) -> list[str]:
    """Return the modes of its Pooling's config, old or new."""
    if isinstance(mode := pooling.get("pooling_mode"), str):
        return mode.split("+")
    prefix = "pooling_mode_"
    return [n.removeprefix(prefix) for n, on in pooling.items() if n.startswith(prefix) and on is True]


def _read(file: Path) -> Json:
    """Return the file's JSON; None where it is missing or damaged."""
    try:
        parsed: Json = json.loads(read_text(file)) if file.is_file() else None
    except (OSError, ValueError):
        return None
    return parsed
