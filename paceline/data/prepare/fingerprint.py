"""The cache key of prepared data: everything that can change the tokens is part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.core.json_types import Json, JsonObject
from paceline.data.file_digests import digest_files, versions
from paceline.data.sources.locate import Located
from paceline.data.sources.user_code import own_digest

FORMAT_VERSION = 6
# Raise it ("2", "3", …) in the commit that makes another row, token or label of the same data: prepared sets
# are then made anew, and a resumed run says that it cannot compare the data.
# tests/architecture/test_row_sources.py fails for changed sources until it is raised or they are recorded.
ROWS_VERSION = "6"


def fingerprint(parts: Mapping[str, Json]) -> str:
    """Return 40 hex digits of the sha256 of canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:40]


def code_version() -> JsonObject:
    """Return the versions that determine the tokens: of Paceline's row code, and of the libraries."""
    return {"format": FORMAT_VERSION, "source": ROWS_VERSION, **versions()}


def definition() -> str:
    """Return ``code_version`` as text.

    Fingerprints are comparable only if this is equal, since each version gives the same data another
    fingerprint.
    """
    return ", ".join(f"{name} {value}" for name, value in code_version().items())


def located_digest(located: Located, split: str, cache_dir: Path) -> list[str]:
    """Return the content digests of a data set: one per file, in reading order."""
    if located.kind == "own":
        return [own_digest(located.own)]
    if located.kind == "hub":
        from paceline.data.sources.read_tables import load_hub

        return [str(load_hub(located, split)._fingerprint)]
    files: Sequence[Path] = located.files
    if located.folder is not None:
        files = sorted(
            p for p in located.folder.rglob("*") if p.is_file() and not p.name.startswith((".", "cache-"))
        )
    return list(digest_files(files, cache_dir).values())
