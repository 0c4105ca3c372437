"""What becomes of each key of another system's config, and the settings that it comes to here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.core.security.secret_formats import SHAPED

_SHOWN_OF_REASON, _SHOWN = 20, 200


class KeyVerdict(str, Enum):
    """MAPPED: acts the same here. NO_EFFECT: the run is the same without it. DIFFERS: taken over, but with a
    named difference. LOST: cannot be kept.
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
    """The settings by our dotted path and the verdict on each key; ``notes``: of a job's file's reader."""

    system: str
    file: str
    settings: dict[str, Setting] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[Diagnostic] = field(default_factory=list)

    def of(self, verdict: KeyVerdict) -> list[Finding]:
        """Return the findings with this verdict."""
        return [finding for finding in self.findings.values() if finding.verdict is verdict]

    def share(self) -> float:
        """Return the share (0 to 1) of the file's own keys that act the same or have no effect."""
        given = [finding for finding in self.findings.values() if finding.line]
        kept = [f for f in given if f.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT)]
        return len(kept) / len(given) if given else 1.0


def shortened(findings: Iterable[Finding]) -> tuple[list[Finding], int]:
    """Return the findings to show, and how many are left out: beyond 20 of one reason, or 200 in all."""
    kept, of_reason = list[Finding](), Counter[str]()
    for finding in findings:
        reason = finding.says.replace(finding.key, "")
        of_reason[reason] += 1
        if of_reason[reason] <= _SHOWN_OF_REASON and len(kept) < _SHOWN:
            kept.append(finding)
    return kept, sum(of_reason.values()) - len(kept)


def as_text(found: Imported, *, every: bool = False) -> str:
    """Return the counts, and the keys that are not kept as they are (``every``: all of them)."""
    given = [finding for finding in found.findings.values() if finding.line]
    counts = ", ".join(
        f"{sum(f.verdict is verdict for f in given)} {verdict.value}" for verdict in KeyVerdict
    )
    lines = [f"{found.file}: {len(given)} keys of {found.system}: {counts}"]
    for verdict in KeyVerdict:
        listed = [f for f in found.of(verdict) if every or verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)]
        if listed:
            findings, left_out = (listed, 0) if every else shortened(listed)
            lines += ["", f"{verdict.value}:", *(_line(found, finding) for finding in findings)]
            lines += [f"  and {left_out:,} more: --all lists every key"] if left_out else []
    return SHAPED.sub("***", "\n".join(lines))


def _line(found: Imported, finding: Finding) -> str:
    place = f"{found.file}:{finding.line}" if finding.line else f"default of {found.system}"
    to = f" -> {', '.join(finding.to)}" if finding.to else ""
    says = f": {finding.says}" if finding.says else ""
    return f"  {place}: {finding.key}: {shown(finding.key, finding.value, 60)}{to}{says}"


def as_json(found: Imported, yaml: str) -> JsonObject:
    """Return the report as plain JSON types; ``share``: of the keys that act the same or have no effect."""
    return {
        "system": found.system,
        "file": found.file,
        "share": round(found.share(), 4),
        "keys": [finding.to_json() for finding in found.findings.values()],
        "yaml": yaml,
    }
