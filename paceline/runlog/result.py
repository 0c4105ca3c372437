"""``result.json``: how the run ended, written once by rank 0 before teardown (contract 10).

The launcher writes it if rank 0 could not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import NO_UTF8
from paceline.core.rundir import RunDir
from paceline.runlog.redact import Redactor


def write_result(
    run: RunDir,
    outcome: str,
    exit_code: int,
    facts: Mapping[str, Any],
    diagnostics: Sequence[Diagnostic] = (),
    *,
    redact: Redactor,
) -> None:
    """Write ``result.json`` atomically; it is durable on return (temporary file, fsync, rename).

    ``outcome``: completed, early_stopped, stopped or failed.
    """
    rows = [redact.diagnostic(d).to_json() for d in diagnostics]
    data = redact.data({"outcome": outcome, "exit_code": int(exit_code), **facts, "diagnostics": rows})
    staged = run.result_json.with_suffix(".json.tmp")
    try:
        with staged.open("w", encoding="utf-8", errors=NO_UTF8) as file:
            json.dump(data, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        staged.replace(run.result_json)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk may hold half of it
            staged.unlink(missing_ok=True)
        raise
