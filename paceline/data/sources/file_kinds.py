"""What kind of rows a file holds and how it is compressed, by its name."""

from __future__ import annotations

from pathlib import Path

#: Suffix of a file → its reader.
SUFFIXES = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
}
#: Suffixes of compressed files, after those of ``SUFFIXES``.
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_TEXTS = (
    "json",
    "jsonl",
    "csv",
    "tsv",
    "txt",
)  # what is published compressed; the others compress themselves


def kind_of(file: Path) -> str | None:
    """Return the reader of a file (a value of ``SUFFIXES``) by its name; None if it has none."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = SUFFIXES.get("".join(suffixes[-2:-1] if packed else suffixes[-1:]))
    return kind if not packed or kind in _TEXTS else None


def kinds_in(name: str) -> set[str]:
    """Return all kinds that any part of a name says: two of ``a.csv.json``, one of ``a.json.bak``."""
    return {kind for part in name.lower().split(".")[1:] if (kind := SUFFIXES.get(f".{part}"))}
