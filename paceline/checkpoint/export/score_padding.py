"""The padding token of a model that scores texts: Transformers reads its score at the last token that is not
padding, so a token that ends texts, which many tokenizers pad with, would hide the end that was trained.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.checkpoint.format.durable_files import write_fresh
from paceline.checkpoint.format.strict_json import parse_object
from paceline.core.json_types import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
_MAX_BYTES = 64 << 20


def pad_apart(stage: Path, ends: Collection[int]) -> int | None:
    """Return a token that pads and ends no text, and make the tokenizer of the folder pad with it: its own,
    else one of its special tokens that no text ends with. None, and nothing changed, if there is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(stage), local_files_only=True, trust_remote_code=False)
    except Exception:  # noqa: BLE001  (damaged files raise many types, and a class may need its own code)
        return None
    chosen = next((one for one in _candidates(tokenizer) if one not in ends), None)
    if chosen is not None and chosen != tokenizer.pad_token_id:
        for name in _SETTINGS:
            if (path := stage / name).is_file():
                settings = parse_object(path.read_bytes(), str(path), max_bytes=_MAX_BYTES)
                replace_json(path, {**settings, "pad_token": tokenizer.convert_ids_to_tokens(chosen)})
    return chosen


def _candidates(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return special tokens: the one that pads, what no chat template writes, what begins a text."""
    written = json.dumps(tokenizer.chat_template or "", ensure_ascii=False)
    special = {
        index: token.content for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    own = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id)
    unwritten = [index for index, text in special.items() if text not in written and index not in own]
    return [one for one in (own[0], *unwritten, *own[1:]) if one is not None]


def replace_json(path: Path, values: Mapping[str, Json]) -> None:
    """Write a JSON file of a folder that is not published yet anew."""
    path.unlink(missing_ok=True)
    write_fresh(path, [json.dumps(values, indent=2, ensure_ascii=False, sort_keys=True).encode() + b"\n"])
