"""Turn any exception into one named diagnostic."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.os_errors import refusal_of
from paceline.runtime.failures.root_cause import is_cascade
from paceline.training import codes
from paceline.training.out_of_memory import is_out_of_memory


def diagnose(
    error: BaseException,
    rank: int,
    silent_ranks: Sequence[int] = (),
    hint: Callable[[], str] | None = None,
    memory: Callable[[], str] = lambda: "",
) -> Diagnostic:
    """Return the diagnostic for an exception.

    That is its own first one, or one made of its type, message and innermost line of code. ``silent_ranks``
    are those that gave no sign of life while this rank waited for the cause of a lost connection; ``hint``
    returns what would fit if memory ran out, ``memory`` what was used of it.
    """
    # Errors that have a diagnostic, or are recognised as out of memory
    if isinstance(error, PacelineError):
        first = error.diagnostics[0]
        place = first.where or f"rank {rank}"
        return replace(first, where=place, evidence={**first.evidence, "rank": rank})
    if is_out_of_memory(error):
        return codes.TRAINING_OUT_OF_MEMORY(
            f"rank {rank}",
            "; ".join(
                filter(None, ((str(error).strip() or type(error).__name__).splitlines()[0][:300], memory()))
            ),
            rank=rank,
            hint=hint() if hint else "paceline plan shows the memory by part and what would fit",
            evidence={"rank": rank},
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = (str(error).strip() or type(error).__name__)[:2000]
    # A lost connection is the consequence of another rank's error
    if is_cascade(error):
        gone = f"; silent: rank {', '.join(map(str, silent_ranks))}" if silent_ranks else ""
        return codes.WORLD_PEER_LOST(
            where, text, rank=rank, gone=gone, evidence={"rank": rank, "silent_ranks": list(silent_ranks)}
        )
    # Refusals of the operating system; everything else is a plain exception
    why = refusal_of(error, _place_of(error)) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and why is not None:
        named = str(error.filename or "a file")
        return codes.TRAINING_SYSTEM_REFUSED(
            where,
            text,
            rank=rank,
            named=named,
            reason=why.reason,
            hint=why.hint,
            evidence={"rank": rank, "kind": why.kind},
        )
    return codes.TRAINING_EXCEPTION(
        where, rank=rank, kind=type(error).__name__, text=text, evidence={"rank": rank}
    )


def _place_of(error: OSError) -> Path | None:
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None


def exit_code_of(error: BaseException, *, echo: bool = False) -> int:
    """Return the process's exit code; ``echo``: the error only reports that another rank is gone."""
    if echo:
        return int(ExitCode.PEER_FAILED)
    return int(error.exit_code) if isinstance(error, PacelineError) else int(ExitCode.FAILED)
