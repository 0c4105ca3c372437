"""The trackers that a config names, opened; one that cannot be is named, and never ends a run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.config.registries.trackers import ALL, TRACKERS, names_of, project_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.plugins.registry import load_attr
from paceline.plan import codes as plan_codes
from paceline.plan.requirements.tracker_login import has_key, meant_offline
from paceline.training import codes
from paceline.training.trackers.backends import ADAPTERS
from paceline.training.trackers.tracker import TrackedRun, Tracker
from paceline.training.trackers.tracker_set import Report, Trackers
from paceline.training.trackers.tracker_thread import TrackerThread

_KEY = "training.report_to"


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
    raise ConfigError(codes.TRACKER_NOT_ONE(_KEY, repr(found)[:200], name=name))


def open_trackers(
    report_to: Sequence[str],
    tracked: TrackedRun,
    *,
    project: str | None,
    environ: Mapping[str, str],
    report: Report,
) -> Trackers:
    """Return the trackers that ``report_to`` names, each in its thread; ``report`` what befalls them.

    Packages are imported here, before the first step and by the thread that trains: an import beside its
    own could meet modules half made. All else of a tracker happens in its thread.
    """
    threads: list[TrackerThread] = []
    for name in names_of(tuple(report_to)):
        of_this = replace(tracked, project=project_of(name, project, environ))
        try:
            make = (
                partial(_own, own_tracker(name), of_this)
                if ":" in name
                else _built_in(name, of_this, environ)
            )
        except ImportError as exc:
            if ALL not in report_to:
                report(_not_installed(name, exc))
        except Exception as exc:  # a package may raise anything while it is imported
            what = f"{name} failed and is not used from here on; events and logs continue"
            found = f"{type(exc).__name__}: {exc}"[:400]
            report(codes.TRACKER_FAILED(what, _KEY, found, "see its own logs", Severity.WARNING))
        else:
            threads.append(TrackerThread(name, make))
            if name in TRACKERS and not has_key(name, environ) and not meant_offline(name, environ):
                report(_offline(name, of_this))
    return Trackers(threads, report)


def _built_in(name: str, tracked: TrackedRun, environ: Mapping[str, str]) -> Callable[[], Tracker]:
    adapter = ADAPTERS[name]
    importlib.import_module(adapter.imports)
    online = has_key(name, environ) or meant_offline(name, environ)  # then its own variable decides
    known = replace(tracked, online=online, address=environ.get("MLFLOW_TRACKING_URI", ""))
    return partial(adapter, known)


def _own(cls: Callable[..., Tracker], tracked: TrackedRun) -> Tracker:
    return cls(run_dir=tracked.run.root, name=tracked.name, config=dict(tracked.config))


def _not_installed(name: str, exc: ImportError) -> Diagnostic:
    what = f"{name} is not installed: the run continues without it"
    hint = f"{TRACKERS[name].install}, or remove '{name}'"
    return plan_codes.TRACKER_NOT_INSTALLED(what, _KEY, str(exc), hint, Severity.WARNING)


def _offline(name: str, tracked: TrackedRun) -> Diagnostic:
    facts = TRACKERS[name]
    what = f"{name} records offline: {facts.key} is not set"
    where = str(tracked.run.root / name)
    return plan_codes.TRACKER_OFFLINE(
        what, where, hint=f"{facts.later}, in that folder, uploads it later", severity=Severity.NOTE
    )
