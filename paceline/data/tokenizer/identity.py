"""Identify a tokenizer: the class that is really loaded, its serialised state, special tokens and template.

Transformers picks the class by ``model_type`` of ``config.json``, so equal tokenizer files can give different
tokens with another model's config. The result is cached by its inputs (files, library versions, added
tokens), since loading a large vocabulary takes a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.file_digests import digest_files, digest_of, recall, remember, versions
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".ot")


def tokenizer_identity(spec: TokenizerSpec, cache_dir: Path) -> JsonObject:
    """Return everything about the tokenizer that can change tokens, as JSON.

    Raises DataError if it cannot be loaded.
    """
    folder = Path(spec.folder)
    inputs: JsonObject = {
        "files": sorted(
            (str(f.relative_to(folder)), d) for f, d in digest_files(read_by(folder), cache_dir).items()
        ),
        "added": [list(spec.add_tokens), list(spec.add_special_tokens), *map(list, spec.special_tokens)],
        "template": spec.chat_template,
        "options": spec.template_options,
        "code": spec.code_revision,
        "versions": versions(),
    }
    key = digest_of(inputs)
    note = cache_dir / "tokenizers" / key[:32]
    stored = recall(note) or {}
    if stored.get("key") == key:
        return as_object(stored["identity"])
    identity = state_of(open_tokenizer(spec), inputs)
    remember(note, {"key": key, "identity": identity})
    return identity


def read_by(folder: Path) -> list[Path]:
    """Return the files that a tokenizer may be loaded from: all in its folder except weights.

    Which of them are read depends on the class.
    """
    inside = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    return sorted(f for f in inside if f.is_file() and f.suffix.lower() not in _WEIGHTS)


def state_of(tokenizer: PreTrainedTokenizerBase, inputs: Mapping[str, Json]) -> JsonObject:
    """Return the state of a loaded tokenizer.

    Without a serialisable backend, or with remote code, it is identified by all of its input files.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None) if tokenizer.is_fast else None
    # Remote code may read any of its files
    opaque = backend is None or inputs["code"] is not None
    return {
        "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "backend": None if backend is None else hashlib.sha256(backend.to_str().encode()).hexdigest(),
        "read": digest_of(inputs) if opaque else None,
        "special": {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        "added": [[i, str(t), bool(t.special)] for i, t in sorted(tokenizer.added_tokens_decoder.items())],
        "split_special": bool(getattr(tokenizer, "split_special_tokens", False)),
        "template": digest_of([tokenizer.chat_template, inputs["options"]]),
    }
