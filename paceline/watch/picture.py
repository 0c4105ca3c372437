"""Write a picture, and the program that draws one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError, ExitCode, PacelineError


def write_png(figure: Any, to: Path, code: Code, hint: str) -> Path:
    """Write a matplotlib figure as PNG, replacing the file atomically; return its path.

    Raises ConfigError with ``code`` if it cannot be written.
    """
    staged = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(staged, format="png", dpi=130, facecolor="white")
        os.replace(staged, to)
    except OSError as exc:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise ConfigError(code("the picture cannot be written", str(to), str(exc), hint)) from exc
    return to


def exit_code_of(draw: Callable[[], Path]) -> int:
    """Draw, say on standard error where the picture is or why there is none, and return the exit code."""
    try:
        made = draw()
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(f"picture     {made}", file=sys.stderr)
    return int(ExitCode.OK)
