"""The files of a model's folder that its checkpoints and exports keep next to config and weights: tokenizer,
chat templates, processors, code, licences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.checkpoint.format.manifest import TEMPLATES_FOLDER, is_side_name
from paceline.checkpoint.format.verify_files import target_of
from paceline.core.files import read_bytes

_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
_TEXTS = re.compile(r"(licen[cs]e|copying|notice|use_policy|acceptable_use).*", re.IGNORECASE)
# Written anew, about another training, or about how weights are stored, which exports write in their own way.
_LEFT = re.compile(
    r"config\.json|generation_config\.json|adapter_config\.json|trainer_state\.json|.*_results\.json"
    r"|.*\.index\.json|.*quant.*\.json|requirements.*\.txt|.*\.safetensors.*"
)
_OF_TOKENIZER = re.compile(
    r"tokenizer.*|vocab.*|merges.*|special_tokens_map\.json|added_tokens\.json|chat_template.*|tekken\.json"
    r"|.*\.(model|tiktoken|jinja)"
)
_MOST_BYTES = 256 << 20


def base_files(folder: Path) -> dict[str, bytes]:
    """Return the files that are kept, by their names in the folder. Raises OSError."""
    return {name: read_bytes(path) for name, path in _kept(folder)}


def _kept(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted((*folder.iterdir(), *folder.glob(f"{TEMPLATES_FOLDER}/*.jinja"))):
        name = path.relative_to(folder).as_posix()
        wanted = (path.suffix in _SUFFIXES and not _LEFT.fullmatch(name)) or _TEXTS.fullmatch(name)
        if not wanted or not is_side_name(name) or not path.is_file():
            continue
        target = target_of(folder, path)  # the hub's cache holds links
        if target is not None and target.stat().st_size <= _MOST_BYTES:
            yield name, target


def join_folders(kept: Mapping[str, bytes], others: Mapping[str, bytes]) -> dict[str, bytes]:
    """Join ``others`` with the files ``kept`` of another folder; that folder's tokenizer stays only if the
    others have none, since two tokenizers must not mix.
    """
    replaced = any(_OF_TOKENIZER.fullmatch(name) for name in others)
    return {n: data for n, data in kept.items() if not (replaced and _OF_TOKENIZER.fullmatch(n))} | {**others}
