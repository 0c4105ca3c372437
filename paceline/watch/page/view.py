"""The runs of a folder, found again every few seconds, and one run as the page shows it, kept up to date."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from paceline.core.diagnostics import all_codes
from paceline.core.files import listed
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.launch.prediction_ledger import expected
from paceline.plan.plan import Plan
from paceline.watch.page.columns import Columns, Reduced, Series, reduced
from paceline.watch.page.glance import (
    LIVE,
    LastBeat,
    changed_at,
    described,
    find_runs,
    glance,
    read_beat,
    read_json,
    read_start,
    run_id,
    state_of_run,
)
from paceline.watch.page.index import BANDS, RunIndex, texts_of

RECENT = 50  # steps whose medians are the present speed
_BEATS_SECONDS = 2.0  # between two readings of all ranks' heartbeats: as often as they are written
_SILENT_SECONDS = 15.0  # without a heartbeat a rank counts as silent
_SHOWN_RANKS = 8
_BEAT_SECONDS = 2.0  # between two writings of a heartbeat (``runtime.failures.heartbeat``)
_MAX_BEATS = 4096  # files that are read for it
_HIDDEN = ("step", "elapsed", "skipped")  # axes and marks, no curves of their own


class RunView:
    """Thread-safe. ``folder``: where the index is kept."""

    def __init__(self, run: RunDir, folder: Path) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._index = RunIndex(run, folder)
        self._share = 0.0
        self._planned: tuple[Json, float | None] = (None, None)  # digest of the config, and its bytes
        self._beats: tuple[float, list[LastBeat]] = (0.0, [])

    def advance(self, seconds: float) -> float:
        """Read new events for about ``seconds``; return the share of the files that is read."""
        with self._lock:
            self._share = self._index.advance(seconds)
            return self._share

    def close(self) -> None:
        """Save the index."""
        with self._lock:
            self._index.save()

    def summary(self) -> JsonObject:
        """Return the state, progress, speed, memory, and which curves there are."""
        with self._lock:
            index = self._index
            plan, result = read_json(self.run.plan_json), read_json(self.run.result_json)
            tokens, each = self._recent("tokens_per_second"), self._recent("step_seconds")
            beat = read_beat(self.run, 0)
            state = state_of_run(
                beat,
                result,
                changed_at(self.run.result_json),
                index.finished,
                has_errors=any(row["is_error"] for row in index.findings.rows()),
                last_step=index.last_step,
                step_seconds=each or 0.0,
                now=time.time(),
                start=read_start(self.run),
            )
            if not self.run.root.is_dir():
                state = type(state)("gone")
            total = index.started.get("total_steps")
            live = state.name in LIVE
            eta = self._eta(total, beat if live else None)
            return {
                "id": run_id(self.run),
                "name": self.run.root.name,
                "path": str(self.run.root),
                "now": time.time(),
                "state": state.to_json(),
                "live": live,
                "indexed": self._share,
                "step": index.last_step,
                "total_steps": total,
                "seconds": index.seconds,
                "begun": index.begun_time,
                "last_event": index.last_time,
                "eta_seconds": eta,
                "loss": self._recent("loss"),
                "tokens_per_second": tokens,
                "step_seconds": each,
                "mfu": self._recent("mfu"),
                "of_product": self._recent("of_product"),
                "tokens": self._sum("tokens"),
                "skipped": self._sum("skipped"),
                "memory": {
                    "peak": float(index.peaks.max(initial=0.0)),
                    "states": _states(plan),
                    "planned": self._planned_bytes(plan),
                },
                "restarts": list(index.restarts),
                "resumed_from": index.started.get("resumed_from"),
                "description": str(index.started.get("description") or ""),
                "series": self._names(),
                "num_samples": len(index.samples),
                "num_checkpoints": len(index.checkpoints),
                "last_checkpoint": max(index.checkpoints, default=None),
                "bands": {
                    name: sum(rank[name] for rank in index.bands.values()) / len(index.bands)
                    for name in (BANDS if index.bands else ())
                },
                "result": {k: v for k, v in result.items() if k != "diagnostics"},
                "ranks": self._ranks(plan, each or 0.0),
                **described(plan),
            }

    def series(
        self, names: Sequence[str], x: str, buckets: int, begin: float | None, end: float | None
    ) -> dict[str, Reduced]:
        """Return curves by name (``steps/loss``, ``evals/eval_loss``, ``peaks/memory``) over ``x``."""
        with self._lock:
            out = {}
            for name in names:
                table = self._index.evals if name.startswith("evals/") else self._index.steps
                if len(table):
                    out[name] = reduced(table.read(x), self._values(table, name), buckets, begin, end)
            return out

    def findings(self) -> JsonObject:
        """Return diagnostics with their codes' explanations, and how the processes ended."""
        with self._lock:
            rows, left_out = self._index.findings.rows(), self._index.findings.left_out
        known = {(row["code"], row["what"]) for row in rows}
        written = read_json(self.run.result_json).get("diagnostics")
        start = read_start(self.run)
        causes = [start.cause] if start is not None and start.cause else []
        for found in [*causes, *(written if isinstance(written, list) else ())]:
            if isinstance(found, dict) and (found.get("code"), found.get("what")) not in known:
                texts = texts_of(found)
                rows.insert(0, {**texts, "is_error": found.get("severity") == "error", "count": 1})
                known.add((texts["code"], texts["what"]))
        explained: list[Json] = [{**row, "explanation": explanation(str(row["code"]))} for row in rows]
        return {"findings": explained, "left_out": left_out, "exits": self._exits()}

    def checkpoints(self) -> list[Json]:
        """Return the published checkpoints, newest first, and whether each still exists."""
        with self._lock:
            rows = [dict(row) for _, row in sorted(self._index.checkpoints.items(), reverse=True)]
        for row in rows:
            row["exists"] = self.run.checkpoint(int(str(row["step"]))).is_dir()
        return list(rows)

    def sample_places(self, before: int | None, limit: int) -> tuple[int, list[tuple[int, bool, int, int]]]:
        """Return (first row, [(step, are held-out answers, byte, length)]) of ``limit`` rows before one."""
        with self._lock:
            table = self._index.samples
            last = len(table) if before is None else min(before, len(table))
            first = max(0, last - limit)
            columns = [
                table.read(name)[first:last].tolist() for name in ("step", "answers", "begin", "length")
            ]
        return first, [(int(s), bool(a), int(b), int(n)) for s, a, b, n in zip(*columns, strict=True)]

    # Parts of the summary; the lock is held

    def _values(self, table: Columns, name: str) -> Series:
        if name == "peaks/memory":
            steps = np.minimum(table.read("step").astype(np.int64), len(self._index.peaks) - 1)
            values = self._index.peaks[steps]
            return np.where(values > 0, values, np.nan)
        return table.read(name.partition("/")[2])

    def _names(self) -> list[Json]:
        index = self._index
        index.steps.flush()
        index.evals.flush()
        names = [f"{table}/{n}" for table, columns in (("steps", index.steps), ("evals", index.evals))
                 for n in columns.names if n not in _HIDDEN]  # fmt: skip
        return [*names, "peaks/memory"] if index.peaks.any() else [*names]

    def _recent(self, name: str) -> float | None:
        values = self._index.steps.read(name)[-RECENT:]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else None

    def _sum(self, name: str) -> float:
        values = self._index.steps.read(name)
        return float(values[np.isfinite(values)].sum())

    def _eta(self, total: Json, beat: LastBeat | None) -> float | None:
        index = self._index
        if beat is None or not isinstance(total, int) or not index.last_step:
            return None
        start = max([0, *index.restarts[-1:]])
        elapsed = index.steps.read("elapsed")
        first = int(np.searchsorted(index.steps.read("step"), start, "right"))
        # Evaluations and saves count: time over the last steps, not the steps' own
        first = max(first, len(elapsed) - 10 * RECENT)
        done = len(elapsed) - 1 - first
        if done < 1:
            return None
        return max(0, total - index.last_step) * float(elapsed[-1] - elapsed[first]) / done

    def _planned_bytes(self, plan: JsonObject) -> float | None:
        """Return the peak memory that the plan expects of a process here; read once for each plan."""
        if self._planned[0] != plan.get("config_digest"):
            self._planned = (plan.get("config_digest"), planned_bytes(plan))
        return self._planned[1]

    def _ranks(self, plan: JsonObject, step_seconds: float) -> JsonObject:
        """Return how many ranks give signs of life, the slowest of them, and which are behind.

        Heartbeats are written every few seconds, so their steps differ by what a rank does meanwhile. A rank
        is behind if it lags more than that margin behind the median, or is silent.
        """
        now = time.time()
        size = plan.get("world_size")
        count = size if isinstance(size, int) else self._index.num_ranks
        if now - self._beats[0] > _BEATS_SECONDS:
            beats = [read_beat(self.run, rank) for rank in range(min(count, _MAX_BEATS))]
            self._beats = (now, [beat for beat in beats if beat is not None])
        worst = sorted(self._beats[1], key=lambda beat: (beat.step, beat.time))[:_SHOWN_RANKS]
        median = int(np.median([beat.step for beat in self._beats[1]])) if self._beats[1] else 0
        margin = 1 + math.ceil(2 * _BEAT_SECONDS / step_seconds) if step_seconds else 1
        return {
            "count": count,
            "seen": len(self._beats[1]),
            "alive": sum(
                now - beat.time < _SILENT_SECONDS and beat.phase != "ended" for beat in self._beats[1]
            ),
            "slowest": [
                {
                    "rank": b.rank,
                    "step": b.step,
                    "phase": b.phase,
                    "age": now - b.time,
                    "host": b.host,
                    "behind": b.step < median - margin or now - b.time >= _SILENT_SECONDS,
                }
                for b in worst
            ],
        }

    def _exits(self) -> list[Json]:
        rows: list[Json] = []
        for path in listed(self.run.events_dir, "exits*.json")[:256]:
            ranks = read_json(path).get("ranks")
            rows += [row for row in ranks if isinstance(row, dict)] if isinstance(ranks, list) else []
        bad = [row for row in rows if isinstance(row, dict) and row.get("code") != 0]
        return [*bad[:64]]


def planned_bytes(plan: JsonObject) -> float | None:
    """Return the peak memory that a plan expects of a process on this machine; None if it is not known.

    A plan with parts of the user's own is left alone: the page runs no code of theirs.
    """
    if any(":" in str(plan.get(name, ":")) for name in ("algorithm", "strategy")):
        return None
    try:
        numbers = expected(Plan.from_json(plan), uncorrected=True)
    except Exception:  # the file may be of another release, or hold anything
        return None
    return numbers.bytes if numbers else None


def _states(plan: JsonObject) -> JsonObject:
    """Return the bytes that the plan counts for a rank's model states; empty if it counted none."""
    match plan.get("memory"):
        case {"largest": dict() as largest}:
            return {name: value for name, value in largest.items() if isinstance(value, int)}
        case _:
            return {}


def explanation(code: str) -> dict[str, Json]:
    """Return what ``code`` means, by language; an empty dict for a code of another release."""
    entry = all_codes().get(code)
    return {} if entry is None else {"en": entry.explanation, "zh": entry.chinese}


_LOOK_SECONDS = 3.0  # between two searches of the folder


class Runs:
    """The runs at ``root``; their indexes lie in ``cache``, one folder a run, locked while in use."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache = root, cache
        self._lock = threading.Lock()
        self._found: dict[str, RunDir] = {}
        self._looked = -_LOOK_SECONDS
        self._views: dict[str, RunView] = {}
        self._claims: list[IO[str]] = []
        self._own = contextlib.ExitStack()

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for view in self._views.values():
            view.close()
        for claim in self._claims:
            claim.close()
        self._own.close()

    def found(self) -> dict[str, RunDir]:
        """Return the runs by id; those that were deleted since stay."""
        with self._lock:
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._found = {**self._found, **find_runs(self.root)}
                self._looked = time.monotonic()
            return dict(self._found)

    def rows(self) -> list[Json]:
        """Return a row a run, the most recently changed first."""
        rows = [{**glance(run), "name": self._name(run)} for run in self.found().values()]
        return [*sorted(rows, key=lambda row: (row.get("live") is not True, -_float(row.get("changed"))))]

    def _name(self, run: RunDir) -> str:
        path = os.path.relpath(run.root, self.root.expanduser().absolute())
        return run.root.name if path == "." else path

    def view(self, run_id: str) -> RunView | None:
        """Return the view of a run; None for an id that is not known."""
        run = self.found().get(run_id)
        if run is None:
            return None
        with self._lock:
            if run_id not in self._views:
                self._views[run_id] = RunView(run, self._claimed(run_id))
            return self._views[run_id]

    def _claimed(self, run_id: str) -> Path:
        """Return the run's folder of the cache, or a temporary one where another page uses that."""
        folder = self.cache / run_id
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            claim = (folder / "lock").open("a")
        except OSError:  # a home that cannot be written
            return Path(self._own.enter_context(tempfile.TemporaryDirectory(prefix="paceline-page-")))
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.close()
            return Path(self._own.enter_context(tempfile.TemporaryDirectory(prefix="paceline-page-")))
        self._claims.append(claim)
        return folder


def _float(value: Json) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
