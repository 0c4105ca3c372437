"""Names that other programs have for our keys, and for what is no key here: ``keys/synonyms.toml``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from paceline.config.keys.nearest import nearest
from paceline.config.yaml_text.read_file import read_table
from paceline.core.json_types import as_object


@cache
def synonyms(section: str = "") -> dict[str, str]:
    """Return name → key or sentence: names inside ``section``, or without one names that mean it anywhere."""
    table = read_table("synonyms")
    rows = as_object(as_object(table["inside"]).get(section)) if section else as_object(table["anywhere"])
    return {str(name): meant for meant, names in rows.items() if isinstance(names, list) for name in names}


def value_meant(path: str, written: str, values: Sequence[str]) -> str:
    """Return which of ``values`` a text means, a sentence if none of them, or an empty text.

    What other programs write around a name does not count: ``deepspeed_zero-3`` is zero3.
    """
    plain = re.sub(r"[^a-z0-9]", "", written.lower())
    bare = re.sub(r"^(torch|pytorch|deepspeed|ds)(?=.)|strategy|offload(cpu|nvme)?", "", plain)
    bare = re.sub(r"(zero)?stage", "zero", bare)
    known = {one.replace("_", ""): one for one in values}
    for meant, names in as_object(as_object(read_table("synonyms")["values"])[path]).items():
        known |= {str(name): meant for name in names} if isinstance(names, list) else {}
    near = nearest(bare, values)
    return known.get(plain) or known.get(bare) or (near[0] if len(near) == 1 else "")
