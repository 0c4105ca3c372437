"""``python -m paceline.evaluation.main evaluate|generate JOB REPORT``: run the job in the file JOB.

REPORT gets the results, or the ``diagnostics`` of a failure. Exit codes: ``core.errors.ExitCode``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity, render_all
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.json_types import JsonObject
from paceline.evaluation.answers_file import generate_rows
from paceline.evaluation.job_checks import checked
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.scores.model_scores import measure
from paceline.launch.program import program

_EVERY_SECONDS = 1.0


class Progress:
    """The progress of an evaluation, on a terminal."""

    def __init__(self) -> None:
        self._shown = 0.0

    def __call__(self, task: str, done: int, rows: int) -> None:
        if sys.stderr.isatty() and (done == rows or time.monotonic() - self._shown > _EVERY_SECONDS):
            self._shown = time.monotonic()
            print(f"\r{task}: {done:,} of {rows:,} rows", end="\n" if done == rows else "", file=sys.stderr)


def evaluate(job: EvaluationJob, notes: list[Diagnostic]) -> JsonObject:
    """Return the numbers of every model of the job. Raises PacelineError."""
    return {"evaluations": [measure(model, job, notes, Progress()) for model in checked(job, notes)]}


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate or generate; return the exit code."""
    verb, job_file, report_file = sys.argv[1:] if argv is None else argv
    job = EvaluationJob.from_json(json.loads(Path(job_file).read_text(encoding="utf-8")))
    notes: list[Diagnostic] = []
    code = ExitCode.OK
    try:
        result = evaluate(job, notes) if verb == "evaluate" else generate_rows(job, notes, Progress())
    except PacelineError as error:
        result = {"diagnostics": [finding.to_json() for finding in error.diagnostics]}
        code = error.exit_code
        print(render_all([*_warnings(notes), *error.diagnostics]), file=sys.stderr)
    else:
        if _warnings(notes):
            print(render_all(_warnings(notes)), file=sys.stderr)
    result["notes"] = [
        finding.to_json() for finding in {finding.render(): finding for finding in notes}.values()
    ]
    Path(report_file).write_text(json.dumps(result), encoding="utf-8")
    return int(code)


def _warnings(notes: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the warnings among the notes, each once."""
    return list({note.render(): note for note in notes if note.severity is not Severity.NOTE}.values())


if __name__ == "__main__":
    sys.exit(main())
