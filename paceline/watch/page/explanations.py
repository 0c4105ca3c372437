"""What a diagnostic's code means, in the page's languages."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from paceline.core.diagnostics import all_codes
from paceline.core.json_types import Json

#: made by scripts/chinese_pages.py
_CHINESE = "explanations.zh-CN.json"


def explanations(code: str) -> dict[str, Json]:
    """Return the explanation of ``code`` by language; an empty dict for a code of another release."""
    found = all_codes().get(code)
    if found is None:
        return {}
    chinese = _chinese().get(code)
    return {"en": found.explanation, **({} if chinese is None else {"zh": chinese})}


@cache
def _chinese() -> dict[str, str]:
    return dict(json.loads((files("paceline.watch.page") / _CHINESE).read_text(encoding="utf-8")))
