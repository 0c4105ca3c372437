"""Run work on all ranks with one outcome: an error on one rank is raised on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypedDict, TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.format.durable_files import os_error
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, PacelineError
from paceline.core.json_types import JsonObject

T = TypeVar("T")


class CheckpointWorld(Protocol):
    """The part of ``World`` that a checkpoint needs."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_gather_json(self, value: T) -> list[T]:
        """Return every rank's value, of JSON types."""


class SingleRank:
    """A world of one rank."""

    rank = 0
    world_size = 1

    def all_gather_json(self, value: T) -> list[T]:
        return [value]


class _Answer(TypedDict, Generic[T], total=False):
    """One rank's outcome: a result, or errors."""

    ok: T
    errors: list[JsonObject]


def on_all_ranks(ranks: CheckpointWorld, work: Callable[[], T], where: Path, failed: str) -> list[T]:
    """Run ``work`` on all ranks, return all results. Collective.

    The error of the first rank that fails is raised on all, as CheckpointError. ``failed``: the message for
    an error without one.
    """
    failure: Exception | None = None
    mine: _Answer[T]
    try:
        mine = {"ok": work()}
    except Exception as exc:
        failure = exc
        mine = {"errors": [d.to_json() for d in _diagnose(exc, where, failed)]}
    everyone = ranks.all_gather_json(mine)
    for rank, answer in enumerate(everyone):
        if "errors" in answer:
            diagnostics = (Diagnostic.from_json(d) for d in answer["errors"])
            raise CheckpointError(
                *(replace(d, evidence={**d.evidence, "rank": rank}) for d in diagnostics)
            ) from failure
    return [answer["ok"] for answer in everyone]


def _diagnose(exc: Exception, where: Path, failed: str) -> tuple[Diagnostic, ...]:
    if isinstance(exc, PacelineError):
        return exc.diagnostics
    if isinstance(exc, OSError):
        return os_error(exc, where, failed).diagnostics
    return (
        codes.CHECKPOINT_SAVE_FAILED(
            f"{failed}; earlier checkpoints are unchanged", str(where), f"{type(exc).__name__}: {exc}"
        ),
    )
