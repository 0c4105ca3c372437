"""Names that other programs have for our keys, and for what is no key here: ``keys/synonyms.toml``."""

from __future__ import annotations

from functools import cache

from paceline.config.yaml_text.read_file import read_table
from paceline.core.json_types import as_object


@cache
def synonyms(section: str = "") -> dict[str, str]:
    """Return name → key or sentence: names inside ``section``, or without one names that mean it anywhere."""
    table = read_table("synonyms")
    rows = as_object(as_object(table["inside"]).get(section)) if section else as_object(table["anywhere"])
    return {str(name): meant for meant, names in rows.items() if isinstance(names, list) for name in names}
