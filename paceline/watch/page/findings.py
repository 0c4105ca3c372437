"""The diagnostics of a run, each once with how often it was reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.json_types import JsonObject

MAX_FINDINGS = 500
_TEXT = ("code", "what", "where", "found", "hint", "severity")


class ReportedFindings:
    """Errors of the last attempt, and notices of all attempts, in the order of their first report."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self.left_out = 0

    def begin(self, rank: int) -> None:
        """Forget a rank's errors: an attempt begins (rank 0's errors name the rank where they began)."""
        for key in [k for k, row in self._rows.items() if row["is_error"] and row["written_by"] == rank]:
            del self._rows[key]

    def add(self, kind: str, data: Mapping[str, Any], at: float, step: int) -> None:
        """Count the diagnostic of an event; events without one are left out."""
        found = data.get("diagnostic")
        if not isinstance(found, dict):
            return
        texts = {name: str(found.get(name, ""))[:4000] for name in _TEXT}
        rank = data.get("failed_rank", data.get("rank", 0))
        key = f"{kind}\n{texts['code']}\n{texts['where']}\n{texts['what']}"
        if key in self._rows:
            row = self._rows[key]
            row["count"] += 1
            row["last_time"], row["last_step"] = at, step
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
            "first_time": at,
            "last_time": at,
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
