"""Read one log: evidence of failures, ends of processes, signs of life. One pass, bounded memory.

Long lines are cut, colours removed, and bars split at carriage returns.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from paceline.doctor.logs.catalogue import Catalogue, Cause, catalogue
from paceline.doctor.logs.deaths import Death, DeathReader
from paceline.doctor.logs.prefixes import LineSource, take_prefix
from paceline.doctor.logs.trainers import trainer_of

_LOSS = re.compile(
    r"(?i)\b(?:lm[ _])?(?:train[ _/]?)?loss['\"]?\s*[:=|]\s*['\"]?([-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)"
)
_NORM = re.compile(r"(?i)\bgrad[ _]norm['\"]?\s*[:=|]\s*['\"]?([-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)")
_STEP = re.compile(
    r"(?i)(?:global_step/max_steps['\"]?: ?['\"]|\bglobal[ _]?step['\"]?\s*[:=]\s*|\biteration\s*[:=]?\s+"
    r"|\bsteps?['\"]?\s*[:=]?\s*)(\d{1,9})(?!\d|\.\d+ on )"  # no "STEP 4411.0 ON node" of Slurm
)
_BAR = re.compile(
    r"^\s{0,8}(?P<name>[^|%]{0,120}?)\s{0,40}\d{1,3}%\|[^|]{0,200}\|"
    r"\s{0,8}(?P<at>\d{1,12})/(?P<of>\d{1,12})\s{0,8}\["
)
_PREPARES = re.compile(
    r"(?i)tokeniz|running tokenizer|^map\b|^filter|packing|preprocess|converting|generating \w+ split|^prepar"
)
_ENDED = re.compile(
    r"(?i)train_runtime|training (?:is )?(?:completed|finished|done|complete)\b|exits successfully"
    r"|end time of running|`?Trainer\.fit`? stopped"
    r"|\btraining run (?:completed|finished)|run finished|finished: completed"
)
_TRAINS = re.compile(r"(?i)(?:train(?:ing)?|epoch[ \d/]*|steps?)?:?$")
_END_WORDS = ("train", "exits", "end time", "finished")
_SAVED = re.compile(
    r"(?i)(?:saving (?:model )?checkpoint to|saved? (?:model |state )?(?:checkpoint )?(?:to|at|in)"
    r"|checkpoint saved (?:to|at)|successfully saved checkpoint (?:at iteration \d+ )?to)"
    r"\s+['\"]?([\w./@:-]{1,300})"
)


@dataclass
class LogProgress:
    """Counts, in the order of the lines. ``steps``: signs of a step; ``finite``: those with a sound loss.

    ``last``: the number of the last step. ``saved``: the newest checkpoint that the log names, and the last
    step before it. ``preparing``: the last bar of a data step that has not reached its end.
    """

    steps: int = 0
    finite: int = 0
    last: int | None = None
    saved: str = ""
    saved_step: int | None = None
    ended: bool = False
    preparing: tuple[int, str] | None = None
    nan: list[tuple[int, str]] = field(default_factory=list)
    zero: list[tuple[int, str]] = field(default_factory=list)
    _bar: int = -1

    def read(self, number: int, text: str) -> bool:
        """Take in a line; whether it is nothing but progress."""
        lower = text.lower()
        if "sav" in lower and (saved := _SAVED.search(text)) is not None:
            self.saved, self.saved_step = saved[1].rstrip(".,"), self.last
        if any(word in lower for word in _END_WORDS) and _ENDED.search(text):
            self.ended = True
        loss = _LOSS.search(text) if "loss" in lower else None
        step = _STEP.search(text) if loss or "step" in text or "iteration" in text else None
        if step is not None:
            self.last = int(step[1]) if loss or self.last is None else max(self.last, int(step[1]))
        if loss is None:
            return False
        self.steps += 1
        self._take_loss(number, text, loss[1].lower())
        return "error" not in lower and "traceback" not in lower

    def take_bar(self, number: int, text: str) -> str:
        """Take in the bar that a line begins with, and return what stands behind it."""
        bar = _BAR.match(text) if "%|" in text else None
        if bar is None:
            return text
        at, name = int(bar["at"]), bar["name"]
        if _PREPARES.search(name):
            self.preparing = (number, text) if at < int(bar["of"]) else None
        elif _TRAINS.match(name) and (at > self._bar or at == 0):  # 0: another attempt begins
            self.steps, self.last, self._bar = self.steps + (at > self._bar >= 0), at, at
        close = text.find("]", bar.end(), bar.end() + 160)
        return text[close + 1 :].lstrip() if close >= 0 else ""

    def _take_loss(self, number: int, text: str, written: str) -> None:
        norm = _NORM.search(text)
        try:
            loss, size = float(written), float(norm[1]) if norm else None
        except ValueError:
            return
        bad_norm = size is not None and not math.isfinite(size)
        if loss == 0.0 and (bad_norm or size == 0.0):
            self.zero.append((number, text))
        elif not math.isfinite(loss) or bad_norm:
            self.nan.append((number, text))
        else:
            self.finite += 1
            if loss != 0.0:
                self.nan.clear()
                self.zero.clear()


_EXCEPTION = re.compile(r"^[\s|+]{0,12}((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80})(?:: |:$|$)")
_NAME = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Refused|Aborted|Group)$")
_QUIET = ("SystemExit", "StopIteration", "GeneratorExit", "Warning")
_BEGIN, _FRAME, _CODE = (
    "Traceback (most recent call last)",
    re.compile(r'^\s*(?:\|\s*)?File "'),
    re.compile(r"^    \S"),
)
_GOES_ON = re.compile(
    r"(?i)\bretry(?:ing)?\b|\bretries left|falling back|fall back|\bskipp(?:ed|ing)\b|\bignor(?:ed|ing)\b"
    r"|\brecovered\b|caught by|using port|\breconnect|not (?:fatal|a problem)"
)
_GIVES_UP = re.compile(
    r"(?i)max(?:imum)? retries|retries exceeded|exhausted|giving up|no more retries|retries: \d+\)"
)
_RETRIED = re.compile(r"(?i)^\W*retrying\b")
_WARNS = re.compile(r"Warning: |NCCL INFO|^warning:|^wandb: (?!ERROR)", re.IGNORECASE)
_HARD = re.compile(r"(?i)error|fatal|fail|what\(\):|cannot|assert")
_DATA = re.compile(
    r"""^\s*(?:[{\[]\s*[{"']|(?:prompt|completion|response|answer|sample|example|reward|text)s?\b)""",
    re.IGNORECASE,
)
_QUOTED = re.compile(r'"[^"]{0,4000}"')
_DIGITS = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b|\d+")
_AFTER = 16  # lines after an exception that may belong to its message
_KEPT = 400  # pieces of evidence of a log
_SHAPES = 20_000  # shapes of lines that are known to say nothing
_TRAINER_LINES = 20_000  # the program shows itself by then
_WEAK = 0.6  # of a line that is no exception and does not call itself an error


@dataclass(frozen=True)
class Evidence:
    """A line that names a cause. ``steps``, ``finite``, ``ended``: what the log had shown before it."""

    cause: Cause
    level: float
    file: str
    number: int
    text: str
    rank: int | None
    node: str
    time: float | None
    steps: int
    finite: int
    ended: bool
    raised: bool = False  # the end of a traceback


@dataclass
class LogFacts:
    """What one log says."""

    file: str
    evidence: list[Evidence]
    deaths: list[Death]
    progress: LogProgress
    ranks: set[int]
    lines: int = 0
    cut: bool = False  # a traceback has no end
    trainer: str = ""


@dataclass
class _RankStream:
    """The traceback that lines of one rank are in."""

    open: bool = False
    quiet: bool = False  # logged by a program that goes on
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    exception: int = -(10**9)  # number of the last exception's line


class LogReader:
    """Reads the lines of one log."""

    def __init__(self, file: str, rank: int | None = None, node: str = "") -> None:
        self._catalogue: Catalogue = catalogue()
        self._file, self._rank, self._node = file, rank, node
        self._streams: dict[tuple[int | None, str], _RankStream] = {}
        self._shapes: set[str] = set()
        self._evidence: list[Evidence] = []
        self._deaths = DeathReader()
        self._progress = LogProgress()
        self._ranks: set[int] = set()
        self._last_frame = -100
        self._trainer = ""

    def read(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        number = 0
        for number, text in lines:
            self._line(number, text)
        return LogFacts(
            self._file,
            self._evidence,
            self._deaths.deaths,
            self._progress,
            self._ranks,
            number,
            any(stream.open for stream in self._streams.values()),
            self._trainer,
        )

    def _line(self, number: int, raw: str) -> None:
        if not self._trainer and number < _TRAINER_LINES:
            self._trainer = trainer_of(raw)
        source, text = take_prefix(raw)
        if (behind := self._progress.take_bar(number, text)) != text:
            inner, text = take_prefix(behind)
            source = inner if source == LineSource() else source
        if source.rank is None and self._rank is not None:
            source = replace(source, rank=self._rank)
        if source.rank is not None:
            self._ranks.add(source.rank)
        if self._progress.read(number, text) or not text or text.isspace():
            return
        self._deaths.read(number, text)
        stream = self._streams.setdefault((source.rank, source.node), _RankStream())
        if len(self._streams) > 4096:
            self._streams.clear()
        if _BEGIN in text:
            stream.open, stream.quiet = True, source.is_warning
            stream.frames.clear()
            return
        if _FRAME.match(text):
            stream.frames.append(text)
            self._last_frame = number
            return
        if _CODE.match(text) and number - self._last_frame < 30:
            return
        if _RETRIED.match(text):
            self._evidence = [e for e in self._evidence if e.number < number - 2]
            return
        if not self._take_exception(number, text, raw, source, stream):
            self._take_line(number, text, raw, source, stream)

    def _take_exception(
        self, number: int, text: str, raw: str, source: LineSource, stream: _RankStream
    ) -> bool:
        match = _EXCEPTION.match(text)
        if match is None:
            return False
        name = match[1].rpartition(".")[2]
        known = _NAME.search(name) is not None
        if not known and not (stream.open and "." in match[1] and name[0].isupper()):
            return False
        if name.endswith(_QUIET) or (not stream.open and _goes_on(text)):
            return True
        cause = self._catalogue.read(text) or self._catalogue.causes["python_exception"]
        self._add(
            self._refined(cause, name, stream),
            cause.level + (_WEAK if stream.quiet else 0),
            number,
            raw,
            source,
            raised=stream.open,
        )
        stream.open, stream.exception = False, number
        return True

    def _refined(self, cause: Cause, name: str, stream: _RankStream) -> Cause:
        """The id that the frames of the traceback make of a cause."""
        for other in self._catalogue.causes.values():
            meant = cause.id in other.refines and (not other.exceptions or name in other.exceptions)
            if meant and any(frame.search(line) for frame in other.frames for line in stream.frames):
                return other
        return cause

    def _take_line(self, number: int, text: str, raw: str, source: LineSource, stream: _RankStream) -> None:
        near = 0 < number - stream.exception <= _AFTER
        quiet = source.is_warning or _WARNS.search(text) is not None
        if _DATA.match(text) and not near:
            return
        if not near and '"' in text:
            text = _QUOTED.sub('""', text)
        shape = _DIGITS.sub("0", text[:400])
        if shape in self._shapes:
            return
        cause = self._catalogue.read(text)
        if cause is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes.add(shape)
            return
        if (quiet and not cause.warnings) or (not cause.fact and not near and _goes_on(text)):
            return
        hard = near or cause.warnings or source.level in ("ERROR", "CRITICAL", "FATAL") or _HARD.search(text)
        self._add(cause, cause.level + (0 if hard else _WEAK), number, raw, source)

    def _add(
        self, cause: Cause, level: float, number: int, text: str, source: LineSource, *, raised: bool = False
    ) -> None:
        if len(self._evidence) >= _KEPT:  # echoes repeat; the first ones and the strongest are enough
            weakest = max(
                range(len(self._evidence) // 2, len(self._evidence)), key=lambda i: self._evidence[i].level
            )
            if self._evidence[weakest].level < level:
                return
            del self._evidence[weakest]
        progress = self._progress
        self._evidence.append(
            Evidence(
                cause,
                level,
                self._file,
                number,
                text[:2000],
                source.rank,
                source.node or self._node,
                source.time,
                progress.steps,
                progress.finite,
                progress.ended,
                raised,
            )
        )


def _goes_on(text: str) -> bool:
    return _GOES_ON.search(text) is not None and _GIVES_UP.search(text) is None


MAX_PIECE = 8192  # bytes of a line that are looked at in one piece
_PIECES = 8  # of one line; what follows is data, no message
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_])")


def read_lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each line as an editor counts them; a line may come in several pieces."""
    number, pieces = 1, 0
    while data := file.readline(MAX_PIECE):
        pieces += 1
        if pieces <= _PIECES:
            for part in data.rstrip(b"\r\n").split(b"\r"):
                if part:
                    yield number, clean(part.decode("utf-8", "replace"))
        if data.endswith(b"\n"):
            number, pieces = number + 1, 0


def clean(text: str) -> str:
    """Return ``text`` without ANSI sequences and NUL bytes."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text.replace("\0", "")
