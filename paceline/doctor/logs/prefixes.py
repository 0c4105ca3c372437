"""What launchers, schedulers and loggers write before a message: rank, node, time, level."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_CAPITALS, _SMALL, _NUMERALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789"


def _starts(pattern: str) -> str:
    """The characters that a match of one of the patterns below can begin with: they are tried only then."""
    if pattern.startswith((r"\[?(?P<time>", r"\[?(?P<glog>")):
        return "[" + (_NUMERALS if "time" in pattern else "IWEF")
    if pattern.startswith((r"\[", r"\(", ">", "kernel")):
        return pattern.lstrip("\\")[0]
    if pattern.startswith((r"(?P<rank>\d", r"(?P<syslog>", "(?P<level>")):
        return _NUMERALS if "<rank>" in pattern else _CAPITALS
    return _CAPITALS + _SMALL + _NUMERALS + "_."


#: Tried in this order, again and again, at the start of what is left
_PREFIXES = tuple(
    (_starts(pattern), re.compile(pattern))
    for pattern in (
        r"\[?(?P<time>\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?\]?"
        r"(?: (?:stdout|stderr) [FP])?(?:\s+[-|]\s+|:?\s+|$)",
        r"(?P<syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<node>[\w.-]+) (?=kernel|\w+(?:\[\d+\])?:)",
        r"kernel: ?",
        r"\[ *\d+\.\d+\](?:\[T\d+\])? ",
        r"\[rank ?(?P<rank>\d{1,6})\]:? ?",
        r"\[default(?P<rank>\d{1,6})\]: ?",
        r"\[pod/(?P<node>[\w.-]{1,200}?)/[\w.-]{1,100}\] ?",
        r"\[\d+,(?P<rank>\d{1,6})\]<(?:stdout|stderr)>: ?",
        r"\[(?P<rank>\d{1,5})\](?:: ?| (?=\S))(?!is setting)",
        r"\((?P<actor>[\w.:]{1,80}) pid=\d+(?:, ip=(?P<node>[\d.a-f:]+))?\) ?",
        r"\[?(?P<glog>[IWEF])(?:\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?)?(?:\s+\d+)?"
        r"\s+[\w./-]{1,300}:\d+\] ?",
        r"\[(?P<node>[A-Za-z][\w-]{0,60}):\d+\] (?=\*\*\*|Signal|\[ ?\d)",
        r"(?P<node>[\w.-]{1,100}):\d+:\d+ \[-?\d+\] (?=.*NCCL )",
        rf"\[{_LEVEL}(?:[|:][^\]]{{0,200}})?\](?::| >>)?\s*",
        rf"{_LEVEL}(?: \d\d-\d\d \d\d:\d\d:\d\d)? \[[\w./-]{{1,100}}:\d+\] ",
        rf"{_LEVEL}(?::[\w.]{{1,100}}:| +\| +|\s+-\s+|: +)",
        rf"[\w.]{{1,80}}: \[{_LEVEL}\] ",
        r"\[PID:\d+\]\s*",
        r"\[RANK:(?P<rank>\d{1,6})\]\s*",
        r"(?P<rank>\d{1,5}): (?=\S)",
        r"(?P<rank>\d{1,5}):  ",
        r"(?P<node>[a-z][a-z0-9.-]{0,60}\d[a-z0-9.-]{0,60}): (?=\S)",
        r">> ?",
    )
)
_BY_START = {
    char: tuple(regex for starts, regex in _PREFIXES if char in starts)
    for char in {char for starts, _ in _PREFIXES for char in starts}
}
# after a level or a time only: a module in brackets, a logger's name before a dash, a function of loguru
_MODULE = re.compile(
    r"\[[\w./-]{1,100}(?::[\w.<>]{1,60}){0,3}\]\s*|[\w.]{1,80}(?::[\w<>]{1,60}:\d+)? [-|] "
    r"|[\w.]{1,80}:\d+ >> "
)
_IN_TEXT = re.compile(r"\[(?:PG [^\]]{0,80})?Rank (\d{1,6})\]")
_POD_RANK = re.compile(r"-(\d{1,5})(?:-\w{5})?$")
_GLOG = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_TEXT_KEYS, _RANK_KEYS = ("log", "message", "msg"), ("rank", "global_rank")
_TIME_KEYS, _LEVEL_KEYS = ("time", "timestamp", "ts"), ("level", "severity", "levelname")


@dataclass(frozen=True)
class LineSource:
    """Where a line comes from. ``time``: seconds, of unknown zone; ``level``: in capitals, "" if unsaid."""

    rank: int | None = None
    node: str = ""
    time: float | None = None
    level: str = ""

    @property
    def is_warning(self) -> bool:
        return self.level in ("WARNING", "WARN", "INFO", "DEBUG")


def take_prefix(text: str) -> tuple[LineSource, str]:
    """Split a line into where it comes from and its message."""
    source = LineSource()
    if text.startswith('{"'):
        source, text = _of_json(text)
    for _ in range(8):
        for pattern in _BY_START.get(text[:1], ()):
            if (match := pattern.match(text)) and match.end():
                source, text = _joined(source, match), text[match.end() :]
                break
        else:
            match = _MODULE.match(text) if source.level or source.time else None
            if match is None:
                break
            text = text[match.end() :]
    if source.rank is None and (inside := _IN_TEXT.search(text)):
        source = replace(source, rank=int(inside[1]))
    return source, text


def _joined(source: LineSource, match: re.Match[str]) -> LineSource:
    groups = match.groupdict()
    rank, node, level = groups.get("rank"), groups.get("node") or "", groups.get("level") or ""
    if groups.get("glog"):
        level = _GLOG[str(groups.get("glog"))]
    if node and rank is None and (pod := _POD_RANK.search(node)) and match[0].startswith("[pod/"):
        rank = pod[1]
    return LineSource(
        int(rank) if rank is not None and source.rank is None else source.rank,
        source.node or node,
        source.time if source.time is not None else seconds(groups.get("time") or ""),
        level or source.level,
    )


def seconds(text: str) -> float | None:
    """Return a time as seconds; None if it is none."""
    if not text:
        return None
    plain = text.replace("_", "T").replace(" ", "T").replace(",", ".")
    whole, _, part = plain.partition(".")
    try:
        return datetime.fromisoformat(whole).timestamp() + float(f"0.{part}" if part.isdecimal() else 0)
    except ValueError:
        return None


def _of_json(text: str) -> tuple[LineSource, str]:
    """A line of a structured log; any other text as it is."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return LineSource(), text
    if not isinstance(data, dict):
        return LineSource(), text
    message = next((data[key] for key in _TEXT_KEYS if isinstance(data.get(key), str)), None)
    if message is None:
        return LineSource(), text
    level = next((data[key] for key in _LEVEL_KEYS if isinstance(data.get(key), str)), "")
    rank = next((data[key] for key in _RANK_KEYS if isinstance(data.get(key), int)), None)
    time = next((data[key] for key in _TIME_KEYS if isinstance(data.get(key), str)), "")
    return LineSource(rank, "", seconds(time.rstrip("Z")[:26]), level.upper()), message.rstrip("\n")
