"""The index of a run: what its event files hold, read once and kept outside the run folder.

Rank 0's steps, evaluations and samples become columns on disk (``columns.py``); of the other ranks the peak
memory and the errors count. Reading is resumed where it ended, so a live run costs what it appends.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.files import listed
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.watch.page.columns import LOST, Columns
from paceline.watch.page.tail import LineTail

VERSION = 2  # of the files in the cache
MAX_STEP = 20_000_000  # a number beyond it would allocate peaks of 160 MB
# other ranks' steps are a million: no JSON is parsed for two numbers
_STEP = re.compile(rb'"kind":"step","step":(\d+)[^\n]*?"memory_bytes":(\d+)')
#: what a rank's seconds go to, and all of them
BANDS = ("data", "compute", "wait", "save", "evaluation", "seconds")
_PLAIN = (
    "epoch",
    "loss",
    "lr",
    "grad_norm",
    "tokens",
    "step_seconds",
    "data_seconds",
    "tokens_per_second",
    "mfu",
    "of_product",
)


class RunIndex:
    """The index of ``run`` in ``folder``; one process uses a folder at a time, one thread an index."""

    def __init__(self, run: RunDir, folder: Path) -> None:
        self.run, self.folder = run, folder
        self._restart()
        self._restore()

    def _restart(self) -> None:
        self.main = LineTail(self.run.events(0))
        self.others: dict[int, LineTail] = {}
        self.steps, self.evals, self.samples = (
            Columns(self.folder / name) for name in ("steps", "evals", "samples")
        )
        self.findings = ReportedFindings()
        self.started: JsonObject = {}
        self.finished: JsonObject = {}
        self.restarts: list[int] = []
        self.checkpoints: dict[int, JsonObject] = {}
        self.seconds = 0.0
        self.last_time: float | None = None
        self.begun_time: float | None = None
        self.last_step = 0
        self.peaks = np.zeros(1024, np.float64)  # bytes by step, the maximum over ranks
        self.bands: dict[str, dict[str, float]] = {}  # of each rank in this attempt, seconds by kind
        self._unsaved = 0
        self._looked = 0.0

    def advance(self, seconds: float) -> float:
        """Read on for about ``seconds``; return the share of the files that is read, 0 to 1."""
        deadline = time.monotonic() + seconds
        self._find_ranks()
        if self.main.replaced() or any(
            tail.offset and not tail.path.exists() for tail in self.others.values()
        ):
            self._restart()
            self._find_ranks()
        for rank, tail in ((0, self.main), *self.others.items()):
            while tail.pending() and time.monotonic() < deadline:
                before = tail.offset
                self._take(rank, tail)
                if tail.offset == before:
                    break  # half a line
                self._unsaved += tail.offset - before
        tails = (self.main, *self.others.values())
        done, left = sum(t.offset for t in tails), sum(t.pending() for t in tails)
        # Half lines do not count as unread: they may never end
        share = (
            1.0 if left < 4096 * len(tails) and time.monotonic() < deadline else done / max(1, done + left)
        )
        if share == 1.0 and self._unsaved > 8 << 20:
            self.save()
        return share

    @property
    def num_ranks(self) -> int:
        return 1 + max(self.others, default=0)

    def _find_ranks(self) -> None:
        if self._looked and time.monotonic() - self._looked < 5:
            return
        self._looked = time.monotonic()
        for path in listed(self.run.events_dir, "rank-*.events.jsonl"):
            number = path.name[5:].partition(".")[0]
            if number.isdecimal() and 0 < int(number) < 100_000:
                self.others.setdefault(int(number), LineTail(path))

    def _take(self, rank: int, tail: LineTail) -> None:
        begin, lines = tail.block()
        if rank == 0:
            for line in lines:
                self._take_main(begin, line)
                begin += len(line) + 1
        else:
            self._take_other(rank, lines)

    def _take_main(self, begin: int, line: bytes) -> None:
        data = _object(line)
        kind, time_of_event = data.get("kind"), _number(data.get("time"))
        if kind is None or time_of_event is None:
            return
        if kind == "run_started":
            self._begin(data, time_of_event)
        elif self.last_time is not None:
            self.seconds += max(0.0, time_of_event - self.last_time)
        self.last_time = time_of_event
        step = data.get("step")
        if kind == "step" and isinstance(step, int) and 0 < step <= MAX_STEP:
            self._take_step(step, data)
        elif kind in ("eval", "samples", "answers", "checkpoint") and isinstance(step, int):
            self._take_report(str(kind), step, data, (begin, len(line)))
        elif kind == "time_bands":
            self._take_bands(0, data)
        elif kind == "finished":
            self.finished = {name: data.get(name) for name in ("outcome", "step", "seconds")}
        elif kind in ("notice", "error"):
            self.findings.add(str(kind), data, time_of_event, self.last_step)

    def _begin(self, data: Mapping[str, Any], begun: float) -> None:
        """Start another attempt; what an earlier one did after its first step is an abandoned branch."""
        start = data.get("start_step")
        start = start if isinstance(start, int) else 0
        if self.started:
            self.restarts.append(start)
        self.begun_time = begun if self.begun_time is None else self.begun_time
        self.started, self.finished = dict(data), {}
        self.bands.pop("0", None)
        self.findings.begin(0)
        for table in (self.steps, self.evals, self.samples):
            if len(table):
                table.cut(int(np.searchsorted(table.read("step"), start, "right")))
        self.peaks[start + 1 :] = 0
        self.last_step = min(self.last_step, start)

    def _take_step(self, step: int, data: Mapping[str, Any]) -> None:
        if step <= self.last_step:  # written twice: the later counts
            self.steps.cut(int(np.searchsorted(self.steps.read("step"), step, "left")))
        row: dict[str, float] = {}
        _add(row, "", {name: data[name] for name in _PLAIN if name in data})
        _add(row, "losses/", data.get("losses"))
        _add(row, "", data.get("extras"))
        columns = {
            "step": float(step),
            "elapsed": self.seconds,
            "skipped": 1.0 if data.get("skipped") else 0.0,
        }
        self.steps.append({**row, **columns})
        self.last_step = step
        memory = data.get("memory_bytes")
        if isinstance(memory, int):
            self._peak(step, memory)

    def _take_report(self, kind: str, step: int, data: Mapping[str, Any], extent: tuple[int, int]) -> None:
        if kind == "eval":
            row: dict[str, float] = {}
            _add(row, "", data.get("metrics"))
            self.evals.append({**row, "step": float(step), "elapsed": self.seconds})
        elif kind == "checkpoint":
            self.checkpoints[step] = {n: data.get(n) for n in ("step", "path", "seconds", "bytes", "time")}
        else:
            answers = float(kind == "answers")
            self.samples.append(
                {
                    "step": float(step),
                    "answers": answers,
                    "begin": float(extent[0]),
                    "length": float(extent[1]),
                }
            )

    def _take_other(self, rank: int, lines: list[bytes]) -> None:
        block = b"\n".join(lines)
        if b'"kind":"run_started"' in block:
            self.findings.begin(rank)
            self.bands.pop(str(rank), None)
        if b'"kind":"time_bands"' in block:
            # Bands of attempts before the last start are another run's time
            starts = [n for n, line in enumerate(lines) if b'"kind":"run_started"' in line]
            for line in lines[max(starts, default=0) :]:
                if b'"kind":"time_bands"' in line:
                    self._take_bands(rank, _object(line))
        if b'"kind":"error"' in block:
            for line in lines:
                if b'"kind":"error"' in line:
                    data = _object(line)
                    self.findings.add("error", data, _number(data.get("time")) or 0.0, self.last_step)
        for match in _STEP.finditer(block):
            self._peak(int(match[1]), int(match[2]))

    def _take_bands(self, rank: int, data: Mapping[str, Any]) -> None:
        total = self.bands.setdefault(str(rank), dict.fromkeys(BANDS, 0.0))
        for name in BANDS:
            value = _number(data.get(name))
            total[name] += value if value is not None and 0 <= value < math.inf else 0.0

    def _peak(self, step: int, memory: int) -> None:
        if not 0 < step <= MAX_STEP:
            return
        if step >= len(self.peaks):
            self.peaks = np.concatenate(
                [self.peaks, np.zeros(max(step + 1, 2 * len(self.peaks)) - len(self.peaks))]
            )
        if memory > self.peaks[step]:
            self.peaks[step] = memory

    # The cache

    def save(self) -> None:
        """Write what is needed to read on in another process."""
        for table in (self.steps, self.evals, self.samples):
            table.flush()
        np.save(self.folder / "peaks.npy", self.peaks[: self.last_step + 1], allow_pickle=False)
        data = {
            "version": VERSION,
            "tails": {str(r): [t.offset, t.head] for r, t in {0: self.main, **self.others}.items()},
            "tables": {
                name: [table.names, len(table)]
                for name, table in (("steps", self.steps), ("evals", self.evals), ("samples", self.samples))
            },
            "findings": self.findings.to_json(),
            "checkpoints": list(self.checkpoints.values()),
            **{name: getattr(self, name) for name in _KEPT},
        }
        staged = self.folder / "index.json.tmp"
        staged.write_text(json.dumps(data), encoding="utf-8")
        staged.replace(self.folder / "index.json")
        self._unsaved = 0

    def _restore(self) -> None:
        """Go on from what ``save`` wrote, if it is of these files; else begin anew."""
        try:
            data = json.loads((self.folder / "index.json").read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                return
            for rank, (offset, head) in data["tails"].items():
                tail = LineTail(self.run.events(int(rank)), offset, head)
                if int(rank):
                    self.others[int(rank)] = tail
                else:
                    self.main = tail
            tables = {
                name: Columns(self.folder / name, names, rows)
                for name, (names, rows) in data["tables"].items()
            }
            if self.main.replaced() or not all(table.is_whole() for table in tables.values()):
                raise ValueError("of another file")
            self.steps, self.evals, self.samples = (tables[name] for name in ("steps", "evals", "samples"))
            self.findings = ReportedFindings.from_json(data["findings"])
            self.checkpoints = {row["step"]: row for row in data["checkpoints"]}
            for name in _KEPT:
                setattr(self, name, data[name])
            peaks = np.load(self.folder / "peaks.npy", allow_pickle=False)
            self.peaks = np.zeros(max(1024, 2 * len(peaks)))
            self.peaks[: len(peaks)] = peaks
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._restart()


_KEPT = ("started", "finished", "restarts", "bands", "seconds", "last_time", "begun_time", "last_step")


_DECODER = json.JSONDecoder(parse_constant=str)  # NaN and infinities as texts, which ``_number`` reads
_MOST = 1 << 62  # of an int that may become a float at once


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = _DECODER.decode(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _add(row: dict[str, float], prefix: str, values: Any) -> None:
    """Add the numbers among ``values`` to ``row``. A million steps come this way: floats take no call."""
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        kind = type(value)
        if kind is float or (kind is int and -_MOST < value < _MOST):
            row[prefix + name] = value
        elif value is not None and (number := _number(value)) is not None:
            row[prefix + name] = number


def _number(value: Any) -> float | None:
    """Return a number; LOST if it is not finite, None for any other type."""
    if isinstance(value, str):
        return LOST if value in ("NaN", "Infinity", "-Infinity") else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return LOST
    return number if math.isfinite(number) else LOST


MAX_FINDINGS = 500  # different ones; each is counted
_TEXT = ("code", "what", "where", "found", "hint", "severity")


def texts_of(diagnostic: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a diagnostic as the page shows them."""
    return {name: str(diagnostic.get(name, ""))[:4000] for name in _TEXT}


class ReportedFindings:
    """Errors of the last attempt, and notices of all attempts, in the order of their first report."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self.left_out = 0

    def begin(self, rank: int) -> None:
        """Forget a rank's errors: an attempt begins (rank 0's errors name the rank where they began)."""
        for key in [k for k, row in self._rows.items() if row["is_error"] and row["written_by"] == rank]:
            del self._rows[key]

    def add(self, kind: str, data: Mapping[str, Any], time_of_event: float, step: int) -> None:
        """Count the diagnostic of an event; events without one are left out."""
        diagnostic = data.get("diagnostic")
        if not isinstance(diagnostic, dict):
            return
        texts = texts_of(diagnostic)
        rank = data.get("failed_rank", data.get("rank", 0))
        key = f"{kind}\n{texts['code']}\n{texts['where']}\n{texts['what']}"
        if key in self._rows:
            row = self._rows[key]
            row["count"] += 1
            row["last_time"], row["last_step"] = time_of_event, step
            return
        if len(self._rows) >= MAX_FINDINGS:
            self.left_out += 1
            return
        self._rows[key] = {
            **texts,
            "is_error": kind == "error",
            "rank": rank if isinstance(rank, int) else 0,
            "written_by": data.get("rank", 0),
            "count": 1,
            "first_time": time_of_event,
            "last_time": time_of_event,
            "first_step": step,
            "last_step": step,
        }

    def rows(self) -> list[JsonObject]:
        """Return the diagnostics, errors first."""
        return sorted((dict(row) for row in self._rows.values()), key=lambda row: not row["is_error"])

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        return {"rows": self._rows, "left_out": self.left_out}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ReportedFindings:
        """Inverse of ``to_json``."""
        findings = ReportedFindings()
        findings._rows, findings.left_out = dict(data["rows"]), int(data["left_out"])
        return findings
