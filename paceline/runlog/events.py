"""The events of a run: frozen dataclasses, each written as one JSON object on a line of its rank's file.

A line is appended and flushed to the kernel at once.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import open_run_file, written_from
from paceline.core.json_types import NO_UTF8
from paceline.runlog import codes
from paceline.runlog.appended import Appended, OnRefusal

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no words for them


@dataclass(frozen=True)
class Event:
    """Something that happened in a run; ``kind`` is its name in the file."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True)
class RunStarted(Event):
    """An attempt begins at ``start_step`` (0 if fresh) and supersedes earlier attempts from that step on."""

    kind: ClassVar[str] = "run_started"
    plan_digest: str
    world_size: int
    resumed_from: str | None = None
    start_step: int = 0
    total_steps: int | None = None
    description: str = ""  # one human-readable line: model, strategy, precision, ranks
    setup_seconds: float | None = None  # since the process began; 0 where the run went back without an end


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step. ``step`` counts finished steps (the first is 1).

    Losses are exact global means by term.

    - ``memory_bytes``: this rank's peak
    - ``reserved_bytes``: what the allocator held at most, on a device that has one
    - ``mfu``: fraction of the data sheet's peak FLOP/s, or on a device without one ``of_product``: fraction
      of the speed of a matrix product timed at the start
    - ``skipped``: ``no_labels``, ``overflow`` or None
    - ``data_seconds``: how long this rank waited for the step's rows; ``step_seconds`` does not count it
    """

    kind: ClassVar[str] = "step"
    step: int
    epoch: float
    loss: float
    losses: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    lr: float = 0.0
    grad_norm: float | None = None
    tokens: int = 0
    step_seconds: float = 0.0
    tokens_per_second: float = 0.0
    mfu: float | None = None
    memory_bytes: int | None = None
    skipped: str | None = None
    sample_digest: str = ""
    extras: Mapping[str, float] = field(default_factory=dict)  # e.g. loss_scale
    of_product: float | None = None
    reserved_bytes: int | None = None
    data_seconds: float | None = None


@dataclass(frozen=True)
class TimeBands(Event):
    """What this rank's ``seconds`` before ``step`` went to.

    ``data``: waiting for rows; ``wait``: for other ranks, on the host; ``compute``: the rest of ``steps``.
    """

    kind: ClassVar[str] = "time_bands"
    step: int
    seconds: float
    data: float
    compute: float
    wait: float
    save: float
    evaluation: float
    steps: int = 0


@dataclass(frozen=True)
class Eval(Event):
    """An evaluation after ``step`` finished steps: ``eval_loss``, ``eval_token_accuracy`` and so on.

    ``bins``: a reward model's pairs by confidence: ``<bin>/share``, ``<bin>/confidence`` and
    ``<bin>/correct`` of every bin that has pairs.
    """

    kind: ClassVar[str] = "eval"
    step: int
    metrics: Mapping[str, float]
    seconds: float = 0.0
    rows: int | None = None
    bins: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint was published; it is durable.

    ``waited``: seconds for which this rank's loop waited, if the rest was done beside training.
    """

    kind: ClassVar[str] = "checkpoint"
    step: int
    path: str
    seconds: float
    bytes: int
    waited: float | None = None


@dataclass(frozen=True)
class Notice(Event):
    """A finding that does not end the run."""

    kind: ClassVar[str] = "notice"
    diagnostic: Diagnostic


@dataclass(frozen=True)
class Error(Event):
    """The error that ended the run; ``rank``: the rank where it began."""

    kind: ClassVar[str] = "error"
    rank: int = field(metadata={"json": "failed_rank"})  # "rank" in the file is the rank that wrote the event
    diagnostic: Diagnostic


@dataclass(frozen=True)
class Answers(Event):
    """The model's answers to held-out questions; rows are ``{prompt, answer, expected, correct}``."""

    kind: ClassVar[str] = "answers"
    step: int
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Samples(Event):
    """Some answers that the model was trained on in ``step``.

    Rows are ``{prompt, completion, answer, reward, reward/<function>, tokens, ended}``, and where known
    ``token_ends`` (characters of ``completion`` up to the end of each token) and their ``logprobs`` (nats).
    """

    kind: ClassVar[str] = "samples"
    step: int
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Finished(Event):
    """The end of an attempt: ``completed``, ``stopped``, ``failed`` or ``early_stopped``."""

    kind: ClassVar[str] = "finished"
    outcome: str
    step: int
    seconds: float


@dataclass(frozen=True)
class Unknown(Event):
    """An event that this version does not know or cannot read; kept so that nothing disappears."""

    kind: ClassVar[str] = "unknown"
    name: str
    data: Mapping[str, Any]


KINDS: Mapping[str, type[Event]] = {
    cls.kind: cls
    for cls in (RunStarted, Step, TimeBands, Eval, CheckpointSaved, Notice, Error, Answers, Samples, Finished)
}


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as strict JSON types.

    NaN and infinities become ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
    """
    data: dict[str, Any] = {"kind": event.kind}
    for f in fields(event):
        value = getattr(event, f.name)
        data[_json_name(f)] = json_safe(value.to_json() if isinstance(value, Diagnostic) else value)
    return data


def from_json(data: Mapping[str, Any]) -> Event:
    """Return the event of a JSON object; ``Unknown`` if the kind is new or a field is missing.

    Extra fields are ignored.
    """
    name = str(data.get("kind", ""))
    cls = KINDS.get(name)
    if cls is None:
        return Unknown(name, dict(data))
    values: dict[str, Any] = {}
    hints = _HINTS[name]
    for f in fields(cls):
        if _json_name(f) in data:
            try:
                values[f.name] = _decode(hints[f.name], data[_json_name(f)])
            except (TypeError, ValueError, KeyError, AttributeError):
                return Unknown(name, dict(data))
        elif f.default is MISSING and f.default_factory is MISSING:
            return Unknown(name, dict(data))
    return cls(**values)


def json_safe(value: Any, clean: Callable[[str], str] | None = None) -> Any:
    """Return ``value`` as JSON types (other types become their ``str``).

    ``clean`` is applied to every string.
    """
    if isinstance(value, str):
        text = str(value)
        return clean(text) if clean else text
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # JSON has no NaN and no infinities.
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {json_safe(str(k), clean): json_safe(v, clean) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [json_safe(v, clean) for v in value]
    return json_safe(str(value), clean)


def _json_name(f: Field[Any]) -> str:
    return str(f.metadata.get("json", f.name))


_HINTS = {
    kind: {name: str(hint) for name, hint in get_type_hints(cls).items()} for kind, cls in KINDS.items()
}


def _decode(annotation: str, value: Any) -> Any:
    """Undo ``to_json`` for one field.

    Only fields typed as float read "NaN" and the like as numbers (a text may well be "NaN").
    """
    if "Diagnostic" in annotation:
        return Diagnostic.from_json(value)
    # By the field's annotation: numbers, then containers; everything else is already right.
    if "float" in annotation:
        if isinstance(value, Mapping):
            return {str(k): _number(v) for k, v in value.items()}
        if value is None and "None" in annotation:
            return None
        return _number(value)
    if annotation == "<class 'int'>":
        return int(value)
    if "Mapping" in annotation and "Sequence" not in annotation:
        return dict(value.items())
    if "Sequence" in annotation:
        return [dict(row.items()) for row in value]
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value]
    return float(value)


MAX_LINE_BYTES = 4 * 1024 * 1024  # longer lines are skipped
_BLOCK_BYTES = 8 << 20  # of a file that is read at once


@dataclass(frozen=True)
class Record:
    """An event, the time it was written (unix seconds), and the rank that wrote it."""

    time: float
    rank: int
    event: Event


class EventLog:
    """The event file of one rank. Thread-safe.

    A full disk does not end the run: ``on_refusal`` is called. Once writing works again, a notice in the file
    gives the number of lost events.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        *,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.time,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self.path = path
        self.rank = rank
        self.untold = 0  # lost events that no notice in the file covers yet
        self._redact = redact
        self._clock = clock
        self._lock = threading.Lock()
        self._file = Appended(path, on_refusal)

    @property
    def lost(self) -> int:
        """The number of events that could not be written."""
        return self._file.lost

    def write(self, event: Event) -> None:
        """Append one event, visible to readers on return. Does nothing after ``close``."""
        with self._lock:
            if not self._file.is_open:
                return
            if self.untold and self._file.append(self._line(Notice(self._lost_diagnostic())), counts=False):
                self.untold = 0
            if not self._file.append(self._line(event)):
                self.untold += 1

    def close(self) -> None:
        """Fsync and close the file. Safe to call twice."""
        with self._lock:
            self._file.close(durable=True)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _line(self, event: Event) -> bytes:
        data = {"time": round(self._clock(), 6), "rank": self.rank, **json_safe(to_json(event), self._redact)}
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", NO_UTF8) + b"\n"

    def _lost_diagnostic(self) -> Diagnostic:
        return codes.RUNLOG_EVENTS_LOST(
            f"{self.untold} events could not be written",
            where=str(self.path),
            severity=Severity.WARNING,
            hint="free disk space",
        )


def read_events(path: Path) -> list[Record]:
    """Return all readable events of a file, oldest first; skip incomplete and foreign lines.

    A missing file has no events.
    """
    return EventTail(path).poll()


class EventTail:
    """Read an event file incrementally: each ``poll`` returns the events completed since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._inode: tuple[int, int] | None = None

    def poll(self) -> list[Record]:
        """Return new events, oldest first; none while the file does not exist."""
        try:
            with open_run_file(self.path) as file:
                info = os.fstat(file.fileno())
                inode = (info.st_dev, info.st_ino)
                if inode != self._inode or info.st_size < self._offset:  # replaced or truncated: start over
                    self._inode, self._offset, self._rest = inode, 0, b""
                return list(self._records(file))
        except FileNotFoundError:
            return []

    def _records(self, file: BufferedReader) -> Iterator[Record]:
        while True:
            begin = written_from(file, self._offset)
            file.seek(begin)
            block = file.read(_BLOCK_BYTES)
            if begin > self._offset:
                self._rest = b"{"  # the line with the hole is no event
            self._offset = begin + len(block)
            if not block:
                return
            *lines, self._rest = (self._rest + block).split(b"\n")
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b"{"  # an overlong line: make sure that its end does not parse either
            yield from (record for record in map(_parse, lines) if record is not None)


def _parse(line: bytes) -> Record | None:
    if not line.strip() or len(line) > MAX_LINE_BYTES:
        return None
    try:
        data: Any = json.loads(line)
        return Record(float(data["time"]), int(data["rank"]), from_json(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
