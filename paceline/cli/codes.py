"""What a diagnostic's code means: the tables of ``core/codes`` and of ``config/codes``, as ``paceline explain`` prints them."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping

from paceline.config.codes import EXPLANATIONS as OF_THE_CONFIG
from paceline.core.codes import EXPLANATIONS as OF_THE_REST
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

EXPLANATIONS: Mapping[str, str] = {**OF_THE_REST, **OF_THE_CONFIG}
_COLUMNS = 100


def explained(code: str) -> str:
    """The explanation of ``code``. Raises ConfigError with the nearest codes when there is none such."""
    if code in EXPLANATIONS:
        text = textwrap.fill(EXPLANATIONS[code], _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return f"{code}\n{text}"
    kin = [c for c in sorted(EXPLANATIONS) if c.split(".")[0] == code.split(".")[0]]
    near = difflib.get_close_matches(code, EXPLANATIONS, n=3) or kin[:5]
    hint = f"nearest: {', '.join(near)}" if near else "the code in brackets of a message, e.g. run.exists"
    raise ConfigError(Diagnostic("cli.unknown_code", "no diagnostic has this code", "command line", code, hint))


def all_codes() -> str:
    """Every code, one a line, by name."""
    return "\n".join(sorted(EXPLANATIONS))
