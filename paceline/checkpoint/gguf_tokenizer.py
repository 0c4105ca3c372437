"""A byte-level BPE tokenizer as GGUF has it; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from paceline.checkpoint import codes
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf's TokenType
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: How a text is split before BPE, by the name that llama.cpp has for it.
SPLITS = {f"{_WORDS}\\p{{N}}{{1,3}}{_REST}": "llama-bpe", f"{_WORDS}\\p{{N}}{_REST}": "qwen2"}


class Writer(Protocol):
    """The part of ``gguf.GGUFWriter`` that is used here."""

    def add_tokenizer_model(self, model: str) -> None: ...
    def add_tokenizer_pre(self, pre: str) -> None: ...
    def add_token_list(self, tokens: list[str]) -> None: ...
    def add_token_types(self, types: list[int]) -> None: ...
    def add_token_merges(self, merges: list[str]) -> None: ...
    def add_chat_template(self, value: str) -> None: ...
    def add_bos_token_id(self, id: int) -> None: ...
    def add_eos_token_id(self, id: int) -> None: ...
    def add_pad_token_id(self, id: int) -> None: ...


def tokenizer_of(folder: Path, vocab_size: int) -> JsonObject:
    """Return tokens, types, merges, split and chat template. Raises CheckpointError for other kinds."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    model = data.get("model") or {}
    split = _split(data.get("pre_tokenizer") or {})
    if model.get("type") != "BPE" or model.get("byte_fallback") or split is None:
        raise CheckpointError(
            codes.EXPORT_GGUF(
                "only byte-level BPE with a known split is written as GGUF",
                str(path),
                f"{model.get('type') or 'no tokenizer.json'}, split: {data.get('pre_tokenizer')}"[:300],
                "leave --gguf out: the Hugging Face folder holds it",
            )
        )
    ids = {index: (token, NORMAL) for token, index in model["vocab"].items()}
    for added in data.get("added_tokens", []):
        ids[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    rows = [ids.get(index, (f"[UNUSED_{index}]", UNUSED)) for index in range(max(vocab_size, max(ids) + 1))]
    template = folder / "chat_template.jinja"
    return {
        "tokens": [token for token, _ in rows],
        "types": [kind for _, kind in rows],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "split": split,
        "template": template.read_text(encoding="utf-8") if template.is_file() else "",
    }


def _split(pre: JsonObject) -> str | None:
    """The name of a pre-tokenizer; None for an unknown one."""
    parts = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return None
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    last = parts[-1]
    assert isinstance(last, dict)
    if kinds == ["ByteLevel"]:
        return "gpt-2" if last.get("use_regex", True) and not last.get("add_prefix_space") else None
    if kinds != ["Split", "ByteLevel"] or last.get("use_regex", True) or last.get("add_prefix_space"):
        return None
    first = parts[0]
    pattern: Json = first.get("pattern") if isinstance(first, dict) else None
    return SPLITS.get(str(pattern.get("Regex"))) if isinstance(pattern, dict) else None


def add_tokenizer(writer: Writer, tokenizer: JsonObject, config: JsonObject) -> None:
    """Add the fields of ``tokenizer_of`` and the ids of special tokens in ``config``."""
    tokens, types, merges = tokenizer["tokens"], tokenizer["types"], tokenizer["merges"]
    assert isinstance(tokens, list) and isinstance(types, list) and isinstance(merges, list)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(str(tokenizer["split"]))
    writer.add_token_list([str(token) for token in tokens])
    writer.add_token_types([int(str(kind)) for kind in types])
    writer.add_token_merges([str(merge) for merge in merges])
    if template := tokenizer["template"]:
        writer.add_chat_template(str(template))
    for key, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("pad_token_id", writer.add_pad_token_id),
    ):
        value = config.get(key)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int):
            add(first)
