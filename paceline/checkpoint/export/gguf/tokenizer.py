"""Write a BPE tokenizer as GGUF: byte-level, or SentencePiece's with byte fallback.

After writing, Transformers reads it back: it must give the same ids as the folder's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.checkpoint import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.files import read_text
from paceline.core.json_types import Json, JsonObject, as_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # gguf's TokenType
#: How a text is split before BPE: names of llama.cpp that Transformers knows, too.
SPLITS = ("llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o")
GPT2_SPLIT = "gpt-2"
#: Texts whose ids are compared: words, numbers, spaces and lines, code, scripts, signs of several bytes.
TEXTS = (
    "The quick brown fox doesn't jump over 12345 lazy dogs, we'll see; it's 3.14159 or 2026-11-27.",
    "  two  spaces   three\ttab\n\nlines\r\n   \n end ",
    "def f(x):\n    return [x ** 2 for _ in range(10)]  # ok?\n\n\nprint(f'{f(3)!r}')",
    "Füße, naïve café, Ελληνικά, Русский текст, العربية, עברית, हिन्दी, ภาษาไทย",
    "你好，世界。日本語のテキスト 한국어 텍스트",
    "😀 👩‍👩‍👧 ∑∫√ €100 ½ ☃ \u200b ﷽ 𝔘",
    "<b>HTML &amp; [brackets] {curly} \\back/slash| a_b-c+d=e@f.g #1 'single' \"double\" ``ticks``",
    "",
    " ",
    "a",
)


class Writer(Protocol):
    """The part of ``gguf.GGUFWriter`` that is used here."""

    def add_tokenizer_model(self, model: str) -> None: ...
    def add_tokenizer_pre(self, pre: str) -> None: ...
    def add_token_list(self, tokens: list[str]) -> None: ...
    def add_token_types(self, types: list[int]) -> None: ...
    def add_token_scores(self, scores: list[float]) -> None: ...
    def add_token_merges(self, merges: list[str]) -> None: ...
    def add_chat_template(self, value: str) -> None: ...
    def add_bos_token_id(self, id: int) -> None: ...
    def add_eos_token_id(self, id: int) -> None: ...
    def add_pad_token_id(self, id: int) -> None: ...
    def add_unk_token_id(self, id: int) -> None: ...
    def add_add_bos_token(self, value: bool) -> None: ...
    def add_add_eos_token(self, value: bool) -> None: ...
    def add_add_space_prefix(self, value: bool) -> None: ...


def tokenizer_of(folder: Path, vocab_size: int) -> JsonObject:
    """Return tokens, types, merges, split and chat template. Raises CheckpointError for other kinds."""
    from transformers import AutoTokenizer

    path = folder / "tokenizer.json"
    data: JsonObject = json.loads(read_text(path)) if path.is_file() else {}
    model = as_object(data.get("model"))
    split = _split(as_object(data.get("pre_tokenizer")))
    is_pieces, pieces = bool(model.get("byte_fallback")), model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(pieces, dict) or (split is None and not is_pieces):
        found = f"{model.get('type') or 'no tokenizer.json'}, split: {data.get('pre_tokenizer')}"[:300]
        raise CheckpointError(
            _refused(
                "only BPE with bytes and a split that Transformers reads is written as GGUF", path, found
            )
        )
    ids = {int(str(index)): (token, _kind(token, model)) for token, index in pieces.items()}
    own = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    for index, added in own.added_tokens_decoder.items():
        if ids.get(index, ("", NORMAL))[1] != UNKNOWN:
            ids[index] = (added.content, CONTROL if added.special else USER_DEFINED)
    rows = [ids.get(index, (f"[UNUSED_{index}]", UNUSED)) for index in range(max(vocab_size, max(ids) + 1))]
    template = folder / "chat_template.jinja"
    return {
        "model": "llama" if is_pieces else "gpt2",
        "tokens": [token for token, _ in rows],
        "types": [kind for _, kind in rows],
        "merges": [
            m if isinstance(m, str) else " ".join(map(str, _listed(m))) for m in _listed(model["merges"])
        ],
        "split": "default" if is_pieces else split,
        "template": read_text(template) if template.is_file() else "",
    }


def _kind(token: str, model: JsonObject) -> int:
    if token == model.get("unk_token"):
        return UNKNOWN
    is_byte = bool(model.get("byte_fallback")) and len(token) == 6 and token.startswith("<0x")
    return BYTE if is_byte else NORMAL


def _split(pre: JsonObject) -> str | None:
    """The name of a pre-tokenizer of byte-level BPE; None for an unknown one."""
    parts = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    listed = [as_object(part) for part in parts] if isinstance(parts, list) and parts else [pre]
    kinds, last = [part.get("type") for part in listed], listed[-1]
    if kinds == ["ByteLevel"]:
        return GPT2_SPLIT if last.get("use_regex", True) and not last.get("add_prefix_space") else None
    if kinds != ["Split", "ByteLevel"] or last.get("use_regex", True) or last.get("add_prefix_space"):
        return None
    regex = as_object(listed[0].get("pattern")).get("Regex")
    return next((name for name, pattern in known_splits().items() if pattern == regex), None)


def known_splits() -> dict[str, str]:
    """The regular expressions of ``SPLITS``, as Transformers has them."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return {name: GGUF_PRE_TOKENIZER_SPLITS[name] for name in SPLITS if name in GGUF_PRE_TOKENIZER_SPLITS}


def add_tokenizer(writer: Writer, tokenizer: JsonObject, config: JsonObject, folder: Path) -> None:
    """Add the fields of ``tokenizer_of``, the ids of special tokens, and whether texts get BOS and EOS."""
    from transformers import AutoTokenizer

    tokens, types, merges = (_listed(tokenizer[key]) for key in ("tokens", "types", "merges"))
    writer.add_tokenizer_model(str(tokenizer["model"]))
    writer.add_tokenizer_pre(str(tokenizer["split"]))
    writer.add_token_list([str(token) for token in tokens])
    writer.add_token_types([int(str(kind)) for kind in types])
    writer.add_token_merges([str(merge) for merge in merges])
    if template := tokenizer["template"]:
        writer.add_chat_template(str(template))
    source = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer["model"] == "llama":
        writer.add_token_scores(_scores([str(t) for t in tokens], [str(m) for m in merges]))
        writer.add_add_space_prefix(source.convert_ids_to_tokens(_ids(source, "a")[:1])[0][:1] == "\u2581")
        if source.unk_token_id is not None:
            writer.add_unk_token_id(source.unk_token_id)
    first, last = _around(source)
    writer.add_add_bos_token(first)
    writer.add_add_eos_token(last)
    for own_first, name, add in (
        (first, "bos_token_id", writer.add_bos_token_id),
        (last, "eos_token_id", writer.add_eos_token_id),
        (False, "pad_token_id", writer.add_pad_token_id),
    ):
        # What frames texts is the tokenizer's; else the config's says what ends an answer.
        from_config, from_tokenizer = config.get(name), getattr(source, name)
        if isinstance(from_config, list):
            from_config = from_config[0] if from_config else None
        value = from_tokenizer if own_first or from_config is None else from_config
        if isinstance(value, int):
            add(value)


def _listed(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else ()


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> list[float]:
    """Return scores that fall with the rank of a token's merge, since llama.cpp merges the best first."""
    rank: dict[str, int] = {}
    for index, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", ""), index)
    return [-float(rank.get(token, len(merges))) for token in tokens]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[bool, bool]:
    """Return whether a text gets a BOS before it, and an EOS after it."""
    plain, framed = _ids(tokenizer, "a"), _ids(tokenizer, "a", special=True)
    if len(framed) == len(plain):
        return False, False
    return framed[: len(plain)] != plain, framed[-len(plain) :] != plain


def compare_tokenizer(folder: Path, aside: Path, file: str) -> None:
    """Read the tokenizer back with Transformers. Raises CheckpointError if ids or chat template differ from
    the folder's."""
    from transformers import AutoTokenizer

    source = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    read = AutoTokenizer.from_pretrained(aside, gguf_file=file, trust_remote_code=False)
    # Added tokens in a text, one by one and beside words.
    texts = [*TEXTS, *(f"word {token} word{token}" for token in source.get_added_vocab())]
    for text in texts:
        for special in (False, True):
            wanted, ids = _ids(source, text, special), _ids(read, text, special)
            if wanted != ids:
                raise CheckpointError(
                    _refused(
                        "Transformers reads this tokenizer back from GGUF as another",
                        folder / "tokenizer.json",
                        f"{text[:60]!r}: {wanted[:12]} would be {ids[:12]}",
                    )
                )
    if (source.chat_template or None) != (read.chat_template or None):
        raise CheckpointError(_refused("the chat template differs", folder, str(read.chat_template)[:100]))


def _refused(message: str, where: Path, evidence: str) -> Diagnostic:
    return codes.EXPORT_GGUF(
        message, str(where), evidence, "leave --gguf out: the Hugging Face folder holds it"
    )
