"""What a judge is shown: the built-in text, or a file of the user's own."""

from __future__ import annotations

from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.evaluation import codes
from paceline.evaluation.processes.job import EvaluationJob

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
