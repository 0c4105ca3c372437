"""Facts from a tokenizer's files without loading it: half a second of reading, no import of torch.

Special tokens as texts never show in generated text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import Json, as_object
from paceline.data.chat_template.template_texts import (
    BUILTIN_TEMPLATES,
    END_MARKS,
    rendered,
    template_text,
    templates_in,
)

if TYPE_CHECKING:
    from jinja2.nodes import Node
    from transformers import PreTrainedTokenizerBase

    from paceline.config.sections.model import ModelSection


# Classes that are fast if there is a tokenizer.json, besides every name that ends in Fast.
_FAST = (
    "TokenizersBackend",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
    "GemmaTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "CodeGenTokenizer",
)
# Jinja's nodes that multiply what a template writes, or call other code
_COSTLY_NODES = ("Mul", "Pow", "Macro", "CallBlock", "Include", "ImportedName", "FromImport", "Extends")
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_LARGEST, _DEEPEST, _LONGEST = 99_999, 4, 200_000  # of a template: numbers, nested loops, characters


def unsettled(folder: Path, model: ModelSection, formats: Set[str], *, learns_answers: bool) -> list[str]:
    """Return why the tokenizer must be loaded to know how rows are rendered.

    Empty if its files are enough.
    """
    if not rendered(formats):
        return [f"{key} in its config" for key in ends_in_config(folder)]
    tokenizer_config = _object(folder / "tokenizer_config.json")
    kind = str(tokenizer_config.get("tokenizer_class") or "")
    whether = {
        "code of its own": bool(tokenizer_config.get("auto_map")),
        "no eos_token in its config": not (
            tokenizer_config.get("eos_token") or "eos_token" in model.special_tokens
        ),
        "no tokenizer.json": learns_answers and not (folder / "tokenizer.json").is_file(),
        f"class {kind}": bool(kind) and not kind.endswith("Fast") and kind not in _FAST,
    }
    return [why for why, is_so in whether.items() if is_so] + list(
        _of_template(folder, model, tokenizer_config)
    )


def ends_in_config(folder: Path) -> list[str]:
    """Return which of add_bos_token and add_eos_token the config sets beside a tokenizer.json, which
    Transformers 5 follows instead.
    """
    config, is_fast = _object(folder / "tokenizer_config.json"), (folder / "tokenizer.json").is_file()
    return [key for key in ("add_bos_token", "add_eos_token") if is_fast and config.get(key) is True]


def _of_template(folder: Path, model: ModelSection, tokenizer_config: Mapping[str, Json]) -> Iterator[str]:
    try:
        # The templates that will be used: from the config, the folder, or the tokenizer's config.
        given = template_text(model.chat_template)
    except (DataError, OSError, ValueError):  # reported by data.look
        return
    templates = templates_in(folder).values() if given is None else [given]
    missing = [
        mark
        for mark in END_MARKS
        if any(mark in text for text in templates) and not _knows(folder, model, tokenizer_config, mark)
    ]
    if missing:
        yield f"{', '.join(missing)} in the chat template"
    if model.chat_template not in BUILTIN_TEMPLATES and not all(map(ends_soon, templates)):
        yield "what the chat template computes"


def _knows(folder: Path, model: ModelSection, tokenizer_config: Mapping[str, Json], token: str) -> bool:
    if token in (*model.add_tokens, *model.add_special_tokens, *model.special_tokens.values()):
        return True
    # As JSON writes it, quotes included: part of a longer token is no hit.
    text = json.dumps(token)
    if text in json.dumps(tokenizer_config.get("added_tokens_decoder")):
        return True
    file = folder / "tokenizer.json"
    return file.is_file() and text in read_text(file)


def ends_soon(template: str) -> bool:
    """Whether a template obviously takes little time and memory; the renderer enforces limits in any case.

    No ranges, products, macros, large numbers or deeply nested loops.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    if len(template) > _LONGEST:
        return False
    try:
        parser = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701
        tree = parser.parse(_GENERATION.sub("", template))
    except (TemplateSyntaxError, RecursionError):
        return False
    return not (
        any(tree.find_all(tuple(getattr(nodes, name) for name in _COSTLY_NODES)))
        or any(name.name in ("range", "lipsum") for name in tree.find_all(nodes.Name))
        or any(_is_large(constant.value) for constant in tree.find_all(nodes.Const))
        or _depth(tree) > _DEEPEST
    )


def _is_large(value: Any) -> bool:
    """Whether a value is a large number, or a text that contains one (a format width)."""
    if isinstance(value, str):
        words = "".join(c if c.isdecimal() else " " for c in value).split()
        # By digits: converting a very long number takes long itself.
        return any(len(word) > len(str(_LARGEST)) for word in words)
    return isinstance(value, (int, float)) and abs(value) > _LARGEST


def _depth(node: Node) -> int:
    """Return the depth of nested loops; a recursive loop counts as too deep."""
    from jinja2 import nodes

    inner = max((_depth(child) for child in node.iter_child_nodes()), default=0)
    if not isinstance(node, nodes.For):
        return inner
    return inner + (_DEEPEST + 1 if node.recursive else 1)


def most_tokens(folder: Path, model: ModelSection) -> int | None:
    """Return an upper bound of the embedding rows needed, from the tokenizer's files and added tokens.

    None if the files do not show it.
    """
    tokenizer, tokenizer_config = (
        _object(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {item[0]: i for i, item in enumerate(vocabulary)}
        # Tokens added by the tokenizer's own files.
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
        decoder = tokenizer_config.get("added_tokens_decoder") or {}
        ids = {**vocabulary, **added, **{token["content"]: int(i) for i, token in decoder.items()}}
        # Special tokens and the config's tokens that are not known yet get new ids.
        special = [v for key, v in tokenizer_config.items() if key.endswith("_token") and v is not None]
        lists = (tokenizer_config.get(f"{name}_special_tokens") for name in ("additional", "extra"))
        special += next(filter(None, lists), [])
        texts = {str(value["content"]) if isinstance(value, dict) else str(value) for value in special}
        texts |= {*model.add_tokens, *model.add_special_tokens, *model.special_tokens.values()}
        new = texts - set(ids)
        # Ids may have gaps, so their number is not the bound.
        return max(len(ids), max(ids.values()) + 1) + len(new)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def same_files(first: Path, second: Path) -> bool:
    """Whether two folders hold the same tokenizer, judging by their files."""
    names = ("tokenizer.json", "tokenizer_config.json")
    return all((f / n).is_file() for f in (first, second) for n in names) and all(
        read_text(first / n) == read_text(second / n) for n in names
    )


def _object(file: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none."""
    try:
        return as_object(json.loads(read_text(file)))
    except (OSError, ValueError):
        return {}


class SpecialTexts:
    """Special tokens, to be found in texts and removed from them."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self.tokens = frozenset(filter(None, tokens))
        # An alternation takes the first that fits: a prefix must come after the longer token.
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def found_in(self, text: str) -> list[str]:
        """Return the tokens in ``text``, each once, in their order."""
        return list(dict.fromkeys(self._any.findall(text)))

    def removed_from(self, text: str) -> str:
        """Return ``text`` without special tokens."""
        return self._any.sub("", text)


def special_texts(tokenizer: PreTrainedTokenizerBase) -> SpecialTexts:
    """Return the tokens that ``tokenizer.decode`` skips with ``skip_special_tokens``."""
    added = tokenizer.added_tokens_decoder.values()
    return SpecialTexts(token.content for token in added if token.special)


def inner_texts(tokenizer: PreTrainedTokenizerBase) -> SpecialTexts:
    """Return the ``special_texts`` that neither begin, end nor pad a text."""
    marks = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token}
    return SpecialTexts(special_texts(tokenizer).tokens - marks)


def special_in_files(folder: Path) -> frozenset[str]:
    """Return the special tokens that a tokenizer's files name; none if they cannot be read."""
    texts: set[str] = set()
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        try:
            listed = as_object(json.loads(read_text(folder / name))).get(key)
        except (OSError, ValueError):
            continue
        entries = listed.values() if isinstance(listed, dict) else listed
        if isinstance(entries, Iterable):
            tokens = [token for token in entries if isinstance(token, dict) and token.get("special")]
            texts |= {str(token.get("content") or "") for token in tokens}
    return frozenset(texts)
