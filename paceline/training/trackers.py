"""TensorBoard and wandb behind a small protocol.

A failing tracker is reported once and disabled; it never ends a run.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.core.registry import load_attr
from paceline.core.rundir import RunDir
from paceline.plan import codes as plan_codes
from paceline.training import codes

Report = Callable[[Diagnostic], None]


class Tracker(Protocol):
    """Receives numbers by name."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """torch's SummaryWriter into ``RUN/tensorboard``; points after ``start_step`` from an earlier attempt are
    purged.
    """

    def __init__(self, run: RunDir, start_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            str(run.tensorboard), purge_step=start_step + 1 if start_step else None
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases, into ``RUN/wandb``; offline without a key (``wandb sync`` uploads later)."""

    def __init__(self, run: RunDir, name: str, config: Mapping[str, Json], online: bool) -> None:
        import wandb

        run.wandb.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project="paceline",
            name=name,
            dir=str(run.wandb),
            config=dict(config),
            mode=None if online else "offline",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Guarded:
    """A tracker that is reported and disabled at its first error."""

    def __init__(self, name: str, tracker: Tracker, report: Report) -> None:
        self.name = name
        self._tracker: Tracker | None = tracker
        self._report = report

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._guard(lambda t: t.log(step, values))

    def close(self) -> None:
        """Flush and close. May be called twice."""
        self._guard(lambda t: t.close())
        self._tracker = None

    def _guard(self, call: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as exc:
            self._tracker = None
            self._report(_failed(self.name, exc))


def own_tracker(name: str) -> Callable[..., Tracker]:
    """Return the class of a tracker of the user's own, ``module:Class``.

    Raises ConfigError if it cannot be imported, has no ``log`` and ``close``, or takes other arguments.
    """
    found: Any = load_attr(name)
    arguments = inspect.signature(found).parameters if callable(found) else {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    if all(callable(getattr(found, part, None)) for part in ("log", "close")) and (
        takes_all or {"run_dir", "name", "config"} <= set(arguments)
    ):
        made: Callable[..., Tracker] = found
        return made
    hint = "a class made with (run_dir, name, config), with log(step, values) and close()"
    raise ConfigError(
        codes.TRACKER_NOT_ONE(f"'{name}' is no tracker", "training.report_to", repr(found)[:200], hint)
    )


NAMES = ("tensorboard", "wandb")
_INSTALL = {"tensorboard": "pip install tensorboard", "wandb": 'pip install "paceline[wandb]"'}


def open_trackers(
    report_to: Sequence[str],
    run: RunDir,
    *,
    name: str,
    config: Mapping[str, Json],
    wandb_key_present: bool,
    start_step: int = 0,
    report: Report | None = None,
) -> tuple[list[Tracker], list[Diagnostic]]:
    """Return the requested trackers, and diagnostics. ``none`` means no tracker, ``all`` every installed one.

    A tracker that cannot start is a WARNING, not an error. ``report`` receives later failures (default:
    Python's logging).
    """
    requested = [report_to] if isinstance(report_to, str) else list(report_to)
    wanted = list(NAMES) if "all" in requested else [n for n in dict.fromkeys(requested) if n != "none"]
    build: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(run, start_step),
        "wandb": lambda: Wandb(run, name, config, wandb_key_present),
    }
    for own in (wish for wish in wanted if ":" in wish):
        build[own] = partial(_own, own, run, name, config)
    trackers: list[Tracker] = []
    notes: list[Diagnostic] = []
    # A tracker that cannot start is left out
    for wish in wanted:
        if wish not in build:
            notes.append(_unknown(wish))
            continue
        try:
            trackers.append(Guarded(wish, build[wish](), report or _by_logging))
        except ImportError as exc:
            notes.append(_not_installed(wish, exc, Severity.NOTE if "all" in requested else Severity.WARNING))
        except Exception as exc:
            notes.append(_failed(wish, exc))
        else:
            if wish == "wandb" and not wandb_key_present:
                notes.append(_offline(run))
    return trackers, notes


def _own(target: str, run: RunDir, name: str, config: Mapping[str, Json]) -> Tracker:
    return own_tracker(target)(run_dir=run.root, name=name, config=dict(config))


def _unknown(name: str) -> Diagnostic:
    return codes.TRACKER_UNKNOWN(
        "there is no such tracker",
        "training.report_to",
        name,
        f"none, all, {', '.join(NAMES)}",
        Severity.WARNING,
    )


def _not_installed(name: str, exc: ImportError, severity: Severity) -> Diagnostic:
    what = f"{name} is not installed: the run continues without it"
    hint = f"{_INSTALL.get(name, 'install its package')}, or remove '{name}'"
    return plan_codes.TRACKER_NOT_INSTALLED(what, "training.report_to", str(exc), hint, severity)


def _offline(run: RunDir) -> Diagnostic:
    what = "wandb records offline: WANDB_API_KEY is not set"
    return plan_codes.TRACKER_OFFLINE(
        what, str(run.wandb), hint="wandb sync, in that folder, uploads it later", severity=Severity.NOTE
    )


def _failed(name: str, exc: Exception) -> Diagnostic:
    what = f"{name} failed and is not used from here on; events and logs continue"
    return codes.TRACKER_FAILED(
        what, "training.report_to", f"{type(exc).__name__}: {exc}", "see its own logs", Severity.WARNING
    )


def _by_logging(diagnostic: Diagnostic) -> None:
    logging.getLogger(__name__).warning("%s", diagnostic.render())
