"""Decide each key of another system's config: its verdict, and what it sets here."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from paceline.config.import_export.argument_tables import Defaults
from paceline.config.import_export.sizes import measured
from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject, nearest_key
from paceline.core.security.secrets import SHAPED

_SHOWN_OF_REASON, _SHOWN = 20, 200
#: keys of other programs that say which training it is
_ALGORITHM = frozenset({"rl", "stage", "rlhf_type", "task_type", "process_reward_model"})


class KeyVerdict(str, Enum):
    """MAPPED: acts the same here. NO_EFFECT: the run is the same without it. DIFFERS: kept, with a stated
    difference. LOST: cannot be kept.
    """

    MAPPED = "mapped"
    NO_EFFECT = "no effect"
    DIFFERS = "differs"
    LOST = "cannot be kept"


@dataclass(frozen=True)
class Finding:
    """The verdict on one key. ``line`` 0: a default of the other system, which the file does not set.

    ``to``: our keys that hold its meaning; ``says``: the reason, or the difference.
    """

    key: str
    value: Json
    line: int
    verdict: KeyVerdict
    to: tuple[str, ...] = ()
    says: str = ""

    def to_json(self) -> JsonObject:
        """Return the finding as plain JSON types, a secret's value masked."""
        return {
            "key": self.key,
            "value": shown(self.key, self.value),
            "line": self.line,
            "verdict": self.verdict.value,
            "to": list(self.to),
            "says": self.says,
        }


@dataclass(frozen=True)
class Setting:
    """A value of our config and the other system's key that it comes from (``line`` 0: its default)."""

    value: Json
    key: str
    line: int
    note: str = ""


@dataclass
class Imported:
    """The settings by our dotted path and the verdict on each key; ``notes``: those of the backend file's
    reader."""

    system: str
    file: str
    settings: dict[str, Setting] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[Diagnostic] = field(default_factory=list)

    def of(self, verdict: KeyVerdict) -> list[Finding]:
        """Return the findings with this verdict."""
        return [finding for finding in self.findings.values() if finding.verdict is verdict]

    def lost_algorithm(self) -> Finding | None:
        """Return the verdict on the key of an algorithm that cannot be kept, if there is one."""
        return next((finding for finding in self.of(KeyVerdict.LOST) if finding.key in _ALGORITHM), None)

    def share(self) -> float:
        """Return the share (0 to 1) of the file's own keys that act the same or have no effect."""
        written = [finding for finding in self.findings.values() if finding.line]
        kept = [f for f in written if f.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT)]
        return len(kept) / len(written) if written else 1.0


def shortened(findings: Iterable[Finding]) -> tuple[list[Finding], int]:
    """Return the findings to show (at most 20 per reason, 200 in all), and the number left out."""
    kept, of_reason = list[Finding](), Counter[str]()
    for finding in findings:
        reason = finding.says.replace(finding.key, "")
        of_reason[reason] += 1
        if of_reason[reason] <= _SHOWN_OF_REASON and len(kept) < _SHOWN:
            kept.append(finding)
    return kept, sum(of_reason.values()) - len(kept)


def as_text(imported: Imported, *, every: bool = False) -> str:
    """Return the counts, and the keys that are not kept as they are (``every``: all of them)."""
    written = [finding for finding in imported.findings.values() if finding.line]
    counts = ", ".join(
        f"{sum(f.verdict is verdict for f in written)} {verdict.value}" for verdict in KeyVerdict
    )
    lines = [f"{imported.file}: {len(written)} keys of {imported.system}: {counts}"]
    defaults = [f.verdict for f in imported.findings.values() if not f.line]
    departures = [(verdict, defaults.count(verdict)) for verdict in (KeyVerdict.DIFFERS, KeyVerdict.LOST)]
    if any(count for _, count in departures):
        lines[0] += "; of its defaults " + ", ".join(f"{n} {verdict.value}" for verdict, n in departures if n)
    for verdict in KeyVerdict:
        listed = [
            f for f in imported.of(verdict) if every or verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)
        ]
        if listed:
            findings, left_out = (listed, 0) if every else shortened(listed)
            lines += ["", f"{verdict.value}:", *(_line(imported, finding) for finding in findings)]
            lines += [f"  and {left_out:,} more: --all lists every key"] if left_out else []
    return SHAPED.sub("***", "\n".join(lines))


def _line(imported: Imported, finding: Finding) -> str:
    origin = f"{imported.file}:{finding.line}" if finding.line else f"default of {imported.system}"
    to = f" -> {', '.join(finding.to)}" if finding.to else ""
    says = f": {finding.says}" if finding.says else ""
    if size := measured(imported.system, finding.key, finding.says):
        says += f" [measured: {size}]"
    return f"  {origin}: {finding.key}: {shown(finding.key, finding.value, 60)}{to}{says}"


def as_json(imported: Imported, yaml: str) -> JsonObject:
    """Return the report as plain JSON types; ``share``: of the keys that act the same or have no effect."""
    return {
        "system": imported.system,
        "file": imported.file,
        "share": round(imported.share(), 4),
        "keys": [
            finding.to_json() | ({"measured": size} if size else {})
            for finding in imported.findings.values()
            for size in [measured(imported.system, finding.key, finding.says)]
        ],
        "yaml": yaml,
    }


_EMPTY: tuple[Json, ...] = (None, "", [], {})


class KeyReader:
    """The keys of one file. Translators take keys by ``value`` and decide each by one of the verbs.

    - ``given``: the file's keys (inner ones dotted)
    - ``lines``: the line of each
    - ``defaults``: the system's
    - ``facts``: facts about the job, for the tables' conditions
    - ``engine`` is deepspeed or fsdp, if a launcher sets it
    """

    def __init__(
        self,
        system: str,
        file: str,
        data: JsonObject,
        lines: Mapping[str, int],
        defaults: Defaults,
    ) -> None:
        self.result = Imported(system, file)
        self.given = data
        self._lines = lines
        self._outer = ""
        self.defaults = defaults
        self.facts: dict[str, Json] = {}
        self.renamed: dict[str, str] = {}  # today's name of a key → the older one that the file has

    def inside(self, outer: str, item: JsonObject) -> KeyReader:
        """Return a reader of the mapping ``item`` at ``outer``, with separate settings."""
        inner, start = copy.copy(self), f"{self._outer}{outer}."
        inner.given = item | {k[len(start) :]: v for k, v in self.given.items() if k.startswith(start)}
        inner.result = replace(self.result, settings={})
        inner._outer, inner.facts, inner.defaults = start, dict(self.facts), {}
        return inner

    def value(self, key: str) -> Json:
        """Return the value that the system would use: the file's, or its default. ``facts`` hide keys."""
        if key in self.facts:
            return self.facts[key]
        value = self.given.get(key)
        return self.defaults.get(key) if value is None else value  # type: ignore[return-value]

    def text(self, key: str) -> str:
        """Return the value as a text, lower case; empty if there is none."""
        value = self.value(key)
        return "" if value is None else str(value).strip().lower()

    def on(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.value(key) not in (*_EMPTY, False, 0) and self.text(key) not in (
            "false",
            "no",
            "off",
            "none",
        )

    def is_given(self, key: str) -> bool:
        """Whether the file sets the key to something."""
        return self.given.get(key) not in _EMPTY

    def engine(self) -> str:
        """Return the key that turns on DeepSpeed or FSDP (sharding, float32 masters); or empty."""
        engine_keys = (name for name in ("deepspeed", "fsdp", "fsdp_config") if self.is_given(name))
        return next(engine_keys, str(self.facts.get("engine") or ""))

    def decided(self, key: str) -> bool:
        """Whether the key already has its verdict."""
        return f"{self._outer}{key}" in self.result.findings

    def open_keys(self) -> list[str]:
        """Return the file's keys without a verdict."""
        return [key for key in self.given if not self.decided(key)]

    def line(self, key: str) -> int:
        """Return the file's line of a key (of its nearest outer key); 0 for a key that is not given."""
        key = f"{self._outer}{key}"
        if not self._outer and key not in self.given and re.split("[.[]", key)[0] not in self.given:
            return 0
        return self._lines.get(nearest_key(self._lines, key), 1)

    def keep(self, key: str, path: str, value: Json, note: str = "") -> None:
        """Keep the key: it acts the same here, as ``path: value``."""
        self.set(path, value, key, note)
        self._decide(key, KeyVerdict.MAPPED, note, path)

    def differs(self, key: str, path: str, value: Json, says: str) -> None:
        """Keep the key with a difference, which ``says`` states."""
        self.set(path, value, key, says)
        self._decide(key, KeyVerdict.DIFFERS, says, path)

    def departs(self, keys: str | Iterable[str], says: str, *, unset: bool = False) -> None:
        """Drop the keys; ``says`` states how the run changes (``unset``: drop their defaults, too)."""
        for key in [keys] if isinstance(keys, str) else keys:
            if unset or key in self.given:
                self._decide(key, KeyVerdict.DIFFERS, says)

    def mapped(self, keys: str | Iterable[str], to: Iterable[str], says: str = "") -> None:
        """Record that settings made of several keys hold the keys' meaning."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.given:
                self._decide(key, KeyVerdict.MAPPED, says, *to)

    def nothing(self, keys: str | Iterable[str], says: str) -> None:
        """Record that the keys have no effect on the run, with the reason; skip keys that the file lacks."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.given:
                self._decide(key, KeyVerdict.NO_EFFECT, says)

    def lose(self, key: str, says: str) -> None:
        """Record that the key cannot be kept, with the reason; also for a default (not in the file)."""
        self._decide(key, KeyVerdict.LOST, says)

    def judge(self, key: str, fine: bool, nothing: str, lost: str) -> None:
        """Record that the key has no effect if its value is ``fine``, else that it cannot be kept; each with
        its reason."""
        self.nothing(key, nothing) if fine else self.lose(key, lost)

    def set(self, path: str, value: Json, key: str = "", note: str = "") -> None:
        """Set a value of our config on behalf of ``key``."""
        self.result.settings[path] = Setting(value, key, self.line(key), note)

    def _decide(self, key: str, verdict: KeyVerdict, says: str, *to: str) -> None:
        value = self.given.get(key, self.defaults.get(key))
        name = f"{self._outer}{key}"
        finding = Finding(name, value, self.line(key), verdict, to, says)  # type: ignore[arg-type]
        self.result.findings[name] = finding

    def older(self, key: str, name: str) -> None:
        """Read an older name of a key as ``name``, which the file lacks."""
        self.given[name], self.renamed[name] = self.given[key], key
        self._lines = {**self._lines, name: self.line(key)}
        self._decide(key, KeyVerdict.MAPPED, f"an older name of {name}")


def data_set(path: Json, **options: Json) -> JsonObject:
    """Return a data set of ours, without options that are empty or the default."""
    defaults = {"split": "train", "weight": 1}
    kept = {
        key: value for key, value in options.items() if value not in (None, "", {}, [], defaults.get(key))
    }
    return {"path": path, **kept}


def data_set_of(reader: KeyReader, path: Json) -> JsonObject:
    """Return a reader's settings as one of our data sets."""
    values = {name: setting.value for name, setting in reader.result.settings.items()}
    columns = {
        name.removeprefix("columns."): value for name, value in values.items() if name.startswith("columns.")
    }
    named = {name: values.get(name) for name in ("name", "split", "format")}
    return data_set(path, **named, columns=columns)


def flat(data: JsonObject, prefix: str = "") -> JsonObject:
    """Return the keys, and the keys inside mappings and lists (``a``, ``a.b``, ``c.0.d``)."""
    keys: JsonObject = {}
    for key, value in data.items():
        keys[f"{prefix}{key}"] = value
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict):
                    keys |= flat(item, f"{prefix}{key}.{number}.")
    return keys
