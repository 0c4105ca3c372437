"""How large named differences are, as the other programs themselves showed (``tests/peers/sizes.py``)."""

from __future__ import annotations

import re

from paceline.config.import_export.argument_tables import table

_OF_A_FILE = re.compile(r"[\w.-]+/[\w./#:-]+|\d+")


def shape_of(system: str, key: str, says: str) -> str:
    """Return what a difference is called in ``arguments/sizes.json``: without numbers and names of a file."""
    return f"{system} {_OF_A_FILE.sub('_', key)}: {_OF_A_FILE.sub('_', says)}"


NOT_MEASURED = "not measured"


def measured(system: str, key: str, says: str) -> str:
    """Return the size of a difference (of each of several), or an empty text where none was measured."""
    inner, _, rest = says.partition(": ")
    if inner.startswith(f"{key}."):  # of a part of the key
        key, says = inner, rest
    sizes = table("sizes")
    if whole := sizes.get(shape_of(system, key, says)):
        return str(whole)
    parts = [sizes.get(shape_of(system, key, part)) for part in dict.fromkeys(says.split("; "))]
    return "; ".join(dict.fromkeys(str(size or NOT_MEASURED) for size in parts)) if any(parts) else ""
