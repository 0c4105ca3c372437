"""A model that scores answers: it reads question, expected answer and answer, and writes ``Score: N``."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import JsonObject
from paceline.evaluation import codes
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import Report

FIELDS = ("prompt", "expected", "answer")
HIGHEST = 10
_FIELD = re.compile(r"\{(prompt|expected|answer)\}")
_SCORE = re.compile(r"score\s*:\s*\**\s*(\d+(?:\.\d+)?)", re.IGNORECASE)


def filled(template: str, text: Sequence[str]) -> str:
    """Return the template with prompt, expected and answer in their places; their own braces stay."""

    def value(match: re.Match[str]) -> str:
        return text[FIELDS.index(match[1])]

    # One pass: braces in an answer are not filled again
    return _FIELD.sub(value, template)


def score_in(text: str) -> float | None:
    """Return the last score that a judge wrote, 0 to 10; None if there is none."""
    scores = _SCORE.findall(text)
    return float(scores[-1]) if scores and float(scores[-1]) <= HIGHEST else None


def judged(
    texts: Sequence[tuple[str, str, str]],
    wheres: Sequence[str],
    job: EvaluationJob,
    notes: list[Diagnostic],
    generate: Callable[[EvaluationJob, list[Diagnostic], Report], JsonObject],
) -> JsonObject:
    """Return the judge's mean score of (prompt, expected, answer), and how many answers have one."""
    assert job.judge is not None
    template = judge_prompt(job)
    with tempfile.TemporaryDirectory(prefix="paceline-judge-") as folder:
        file, to = Path(folder) / "prompts.jsonl", Path(folder) / "judged.jsonl"
        with open(file, "w", encoding="utf-8") as out:
            for text in texts:
                out.write(json.dumps({"prompt": filled(template, text)}) + "\n")
        judge_job = replace(
            job,
            models=(job.judge,),
            data={"path": str(file)},
            overrides=(),
            checkpoints="result",
            metrics=(),
            samples=1,
            judge=None,
            to=str(to),
        )
        generate(judge_job, [], lambda *_: None)
        written = [json.loads(line)["generated"] for line in to.read_text(encoding="utf-8").splitlines()]
    scores = [score_in(score) for score in written]
    numbers = [score for score in scores if score is not None]
    if len(numbers) < len(scores):
        missing = [position for position, score in enumerate(scores) if score is None]
        first = f"{wheres[missing[0]]}: {written[missing[0]][:120]!r}"
        notes.append(codes.EVALUATION_JUDGE(job.judge, first, missing=len(missing), scores=len(scores)))
    return {"judge": sum(numbers) / len(numbers) if numbers else None, "judged": len(numbers)}


PROMPT = """Judge how good an answer to a question is.

Question:
{prompt}

Expected answer (may be empty):
{expected}

Answer to judge:
{answer}

Say briefly what is right and wrong, and end with a line "Score: N", where N is a whole number from 0
(useless) to 10 (as good as it can be)."""


def judge_prompt(job: EvaluationJob) -> str:
    """Return the judge's prompt template. Raises ConfigError if it lacks the answer."""
    if job.judge_prompt is None:
        return PROMPT
    try:
        text = read_text(Path(job.judge_prompt).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            codes.EVALUATION_JOB(
                "the judge's prompt cannot be read", "--judge-prompt", str(error), "a text file"
            )
        ) from error
    if "{answer}" not in text:
        message = "the judge's prompt does not contain {answer}"
        remedy = "a text with {prompt}, {expected} and {answer}, which ends by asking for a line 'Score: N'"
        raise ConfigError(codes.EVALUATION_JOB(message, "--judge-prompt", job.judge_prompt, remedy))
    return text
