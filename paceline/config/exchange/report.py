"""What an import says about the keys: a text for people, JSON for programs."""

from __future__ import annotations

from paceline.config.exchange.verdicts import Finding, Imported, KeyVerdict, shortened
from paceline.config.source import shown
from paceline.core.json_types import JsonObject
from paceline.core.security.secret_formats import SHAPED


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
