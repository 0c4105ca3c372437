"""The verdict about nodes, as text and as JSON."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic, errors, render_all
from paceline.core.json_types import JsonObject
from paceline.doctor.nodes.messages import NodesVerdict


def findings_of(verdict: NodesVerdict) -> tuple[Diagnostic, ...]:
    """Return the findings of a verdict."""
    return tuple(Diagnostic.from_json(finding) for finding in verdict.findings)


def text(verdict: NodesVerdict) -> str:
    """Return the lines about nodes and links, and the findings."""
    findings = findings_of(verdict)
    end = render_all(findings) if findings else "no problems found"
    return "\n".join([*verdict.lines, end])


def as_json(verdict: NodesVerdict) -> JsonObject:
    """Return the verdict as plain JSON types."""
    healthy = not errors(findings_of(verdict))
    return {"healthy": healthy, "lines": list(verdict.lines), "findings": list(verdict.findings)}
