"""Exact match of a run's checkpoints on questions.

``python -m paceline.training.exact_match RUN --questions FILE.jsonl [--initial] [--last]``

The model is built once, with the worker's seed, so that ``--initial`` evaluates exactly the model that
training started from. The weights of each checkpoint are then loaded into it. Rows of the file are
``{"messages": [user, …, assistant]}`` (the last message is the expected answer),
``{"prompt": …, "answer": …}``, or have pictures as rows to train on have. The answers of every checkpoint are
appended to the run's events (kind ``answers``, which plot and page show). All of them are written to the
run's ``answers.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint.format.verify_files import read_state, scan
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.start_folder import model_of_run
from paceline.config.schema import Config
from paceline.core.errors import CheckpointError, ConfigError, DataError, ExitCode
from paceline.core.files import read_run_file, read_text
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.data.tokenizer.file_facts import special_texts
from paceline.data.tokenizer.load import load_tokenizer
from paceline.evaluation.open_run import end_where_turns_end
from paceline.evaluation.prompts import prompts_of
from paceline.evaluation.scores.picture_answers import answer_about_pictures, has_pictures
from paceline.generation.answer import Sampling, answer
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program
from paceline.models.factory import HFModelFactory
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.protocols.shard import PARAM
from paceline.runlog.events import Answers, EventLog
from paceline.runlog.redact import Redactor
from paceline.training import codes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class AnswersAtStep:
    """The answers after ``step`` training steps (0: before training)."""

    step: int
    rows: list[JsonObject]  # prompt, expected, answer, correct

    @property
    def exact_match(self) -> float:
        """Fraction of answers equal to the expected one, ignoring surrounding whitespace."""
        return sum(bool(row["correct"]) for row in self.rows) / len(self.rows)


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate the checkpoints of a run. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.training.exact_match",
        description="Exact match of a run's checkpoints on questions.",
    )
    parser.add_argument("run")
    parser.add_argument("--questions", required=True, help="JSON lines with prompt and answer")
    parser.add_argument("--initial", action="store_true", help="also the model before training")
    parser.add_argument("--last", action="store_true", help="only the newest checkpoint, not every one")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    options = parser.parse_args(None if argv is None else list(argv))
    run = RunDir.at(options.run)
    file = Path(options.questions)
    if has_pictures(load_run_config(run), file):
        if options.initial:
            parser.error("--initial: questions about pictures are answered by checkpoints alone")
        which = "latest" if options.last else "all"
        answers = answer_about_pictures(run, file, which, options.max_new_tokens)
        scored = [AnswersAtStep(step, rows) for step, rows in answers]
    else:
        sampling = Sampling(options.max_new_tokens)
        questions = read_questions(file)
        scored = answer_run(run, questions, initial=options.initial, last=options.last, sampling=sampling)
    with written_into(run.root):
        write_down(run, scored, Redactor.of(current()))
    for each in scored:
        print(f"step {each.step:>6}  exact match {each.exact_match:6.1%}  of {len(each.rows)}", flush=True)
    return int(ExitCode.OK)


def read_questions(path: Path) -> list[dict[str, str]]:
    """Return prompts with their expected answers. Raises DataError naming the line that is not a question."""
    rows: list[dict[str, str]] = []
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            codes.TRAINING_QUESTIONS("the questions cannot be read", str(path), str(error))
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(question_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                codes.TRAINING_QUESTIONS(
                    "a question must be a JSON object with prompt and answer",
                    f"{path}:{number}",
                    line[:80],
                    '{"prompt": "…", "answer": "…"}',
                )
            ) from error
    if not rows:
        raise DataError(codes.TRAINING_QUESTIONS("there are no questions", str(path)))
    return rows


def question_of(row: JsonObject) -> dict[str, str]:
    """Return prompt and expected answer of a row.

    Raises KeyError, IndexError or TypeError if it is not a question.
    """
    if isinstance(messages := row.get("messages"), list):
        *_, question, expected = map(as_object, messages)
        return {"prompt": str(question["content"]), "expected": str(expected["content"])}
    return {"prompt": str(row["prompt"]), "expected": str(row["answer"])}


def answer_run(
    run: RunDir, questions: Sequence[dict[str, str]], *, initial: bool, last: bool, sampling: Sampling
) -> list[AnswersAtStep]:
    """Return the answers per checkpoint, ordered by step.

    Raises ConfigError if RUN is not a run directory, CheckpointError if it has no complete checkpoint.
    """
    config = load_run_config(run)
    checkpoints = sorted(
        (f for f in scan(run.checkpoints) if f.problem is None), key=lambda f: int(f.name[5:])
    )
    if not checkpoints:
        raise CheckpointError(codes.TRAINING_NO_CHECKPOINT(str(run.checkpoints)))
    newest = checkpoints[-1].path
    model = model_of_run({**read_state(newest), "config": config.to_json()}, newest)
    tokenizer = load_tokenizer(model)
    factory = HFModelFactory(
        model, Role.POLICY, vocab_size=len(tokenizer), seed=config.training.seed, attention="sdpa"
    )
    root = factory().eval()
    end_where_turns_end(root.hf, tokenizer)
    scored = [AnswersAtStep(0, write_answers(root, tokenizer, questions, sampling))] if initial else []
    for checkpoint in checkpoints[-1:] if last else checkpoints:
        with CheckpointReader(checkpoint.path) as reader:
            load_weights(root, reader)
            scored.append(AnswersAtStep(reader.step, write_answers(root, tokenizer, questions, sampling)))
    return scored


def load_run_config(run: RunDir) -> Config:
    """Return the effective config that the run was started with. Raises ConfigError."""
    try:
        return Config.from_json(json.loads(read_run_file(run.config_json)))
    except (OSError, ValueError) as error:
        raise ConfigError(codes.TRAINING_NO_RUN(str(run.root), str(error))) from error


@torch.no_grad()
def load_weights(root: RootModule, reader: CheckpointReader) -> None:
    """Read the policy's parameters into ``root``."""
    for name, parameter in root.plain_named_parameters():
        parameter.copy_(reader.read(Role.POLICY.value, name, PARAM))


def write_answers(
    root: RootModule,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[dict[str, str]],
    sampling: Sampling,
) -> list[JsonObject]:
    """Generate one answer per question, without history between them."""
    conversations = [[{"role": "user", "content": q["prompt"]}] for q in questions]
    written = answer(root.hf, tokenizer, prompts_of(tokenizer, conversations), sampling, batch_size=256)
    special = special_texts(tokenizer)
    return [
        {**q, "answer": a, "correct": a.strip() == special.removed_from(q["expected"]).strip()}
        for q, a in zip(questions, written, strict=True)
    ]


def write_down(run: RunDir, scored: Sequence[AnswersAtStep], redact: Redactor) -> None:
    """Write the answers as events, for the plot, and as one JSON file."""
    with EventLog(run.events(0), 0, redact=redact) as log:
        for each in scored:
            log.write(Answers(each.step, each.rows))
    data = redact.data(
        [{"step": each.step, "exact_match": each.exact_match, "rows": each.rows} for each in scored]
    )
    run.answers_json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
