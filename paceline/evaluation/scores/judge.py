"""A model that scores answers: it is shown question, expected answer and answer, and writes ``Score: N``."""

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

    return _FIELD.sub(value, template)


def score_in(text: str) -> float | None:
    """Return the last score that a judge wrote, 0 to 10; None if there is none."""
    found = _SCORE.findall(text)
    return float(found[-1]) if found and float(found[-1]) <= HIGHEST else None


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
        own = replace(
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
        generate(own, [], lambda *_: None)
        written = [json.loads(line)["generated"] for line in to.read_text(encoding="utf-8").splitlines()]
    scores = [score_in(one) for one in written]
    known = [one for one in scores if one is not None]
    if len(known) < len(scores):
        missing = [at for at, one in enumerate(scores) if one is None]
        found = f"{wheres[missing[0]]}: {written[missing[0]][:120]!r}"
        notes.append(codes.EVALUATION_JUDGE(job.judge, found, missing=len(missing), scores=len(scores)))
    mean = sum(known) / len(known) if known else None
    return {"judge": mean, "judged": len(known)}


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
    """Return the text that the judge is shown. Raises ConfigError if it lacks the answer."""
    if job.judge_prompt is None:
        return PROMPT
    try:
        text = read_text(Path(job.judge_prompt).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        what = "the judge's prompt cannot be read"
        raise ConfigError(codes.EVALUATION_JOB(what, "--judge-prompt", str(error), "a text file")) from error
    if "{answer}" not in text:
        what = "the judge's prompt does not contain {answer}"
        hint = "a text with {prompt}, {expected} and {answer}, which ends by asking for a line 'Score: N'"
        raise ConfigError(codes.EVALUATION_JOB(what, "--judge-prompt", job.judge_prompt, hint))
    return text
