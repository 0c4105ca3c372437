"""Preference demos: DPO makes right answers likelier than wrong ones, a reward model tells them apart."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from paceline.core.rundir import RunDir
from paceline.demo.files import quoted
from paceline.demo.further import AlgorithmDemo, Measure, Yaml
from paceline.demo.numbers import Number
from paceline.demo.pairs import pairs_of, write_pairs
from paceline.demo.questions import training
from paceline.demo.report import read_answers
from paceline.demo.start import HalfWay
from paceline.demo.tokenizer import MAX_LENGTH
from paceline.runlog.history import load_history

PAIRS = 64  # per step, over all processes
HELD_OUT_EACH = 3  # pairs per held-out question
RANKED = 0.85


def lay_pairs(root: Path, start: HalfWay, seed: int, *, count: int) -> None:
    """Write ``pairs.jsonl`` from training questions and ``held_out_pairs.jsonl`` from the held-out ones.

    The two have no words in common.
    """
    folder = root / "material"
    folder.mkdir(parents=True, exist_ok=True)
    questions = start.material.questions
    write_pairs(folder / "pairs.jsonl", pairs_of(training(seed, count, {q.word for q in questions}), seed))
    write_pairs(folder / "held_out_pairs.jsonl", pairs_of(list(questions) * HELD_OUT_EACH, seed + 1))


def _yaml(
    root: Path,
    run: RunDir,
    start: HalfWay,
    seed: int,
    steps: int,
    nproc: int,
    *,
    algorithm: str,
    own: str,
    rate: str,
) -> str:
    every = max(1, steps // 6)
    return f"""\
# The demo's config: change a value and train again, e.g.
#   paceline train THIS_FILE training.output_dir=outputs/mine training.learning_rate=1e-4 --nproc 2

model:
  name_or_path: {quoted(start.model)}

data:
  train: {quoted(root / "material" / "pairs.jsonl")}            # prompt, chosen, rejected
  eval: {quoted(root / "material" / "held_out_pairs.jsonl")}
  max_length: {MAX_LENGTH}

training:
  algorithm: {algorithm}
  distributed_strategy: {"ddp" if nproc > 1 else "single"}
  mixed_precision: "no"         # so small a model gains nothing from bf16
  per_device_train_batch_size: {max(1, PAIRS // nproc)}   # pairs
  num_train_epochs: 1000        # max_steps ends it
  max_steps: {steps}
  learning_rate: {rate}
  lr_scheduler_type: cosine
  warmup_steps: {max(1, min(10, steps // 10))}
  adam_beta2: 0.99
  max_grad_norm: 1.0
  seed: {seed}
{own}
  eval_on_start: true
  eval_strategy: steps
  eval_steps: {every}
  per_device_eval_batch_size: 64
  save_strategy: steps
  save_steps: {every}
  logging_steps: 10
  report_to: [tensorboard]
  output_dir: {quoted(run.root)}
"""


def dpo_yaml(root: Path, run: RunDir, start: HalfWay, seed: int, steps: int, nproc: int) -> str:
    """Return the complete config of the DPO demo."""
    own = """\
  dpo:
    beta: 0.1
    rpo_alpha: 1.0              # right answers become likelier in themselves, too
    precompute_ref_log_probs: true"""
    return _yaml(root, run, start, seed, steps, nproc, algorithm="dpo", own=own, rate="5e-4")


def reward_yaml(root: Path, run: RunDir, start: HalfWay, seed: int, steps: int, nproc: int) -> str:
    """Return the complete config of the reward model's demo."""
    own = """\
  reward:
    center_rewards_coefficient: 0.01"""
    return _yaml(root, run, start, seed, steps, nproc, algorithm="reward", own=own, rate="1e-3")


def dpo_numbers(run: RunDir, start: HalfWay) -> list[Number]:
    """Return how often the chosen answer gained more than the rejected one, and exact match."""
    answers, measured = read_answers(run), _held_out(run, "rewards/accuracies")
    before, after = float(answers[0]["exact_match"]), float(answers[-1]["exact_match"])
    ranked = Number("held-out pairs: the right answer gained more", None, measured[-1], RANKED)
    return [ranked, Number("exact match on held-out questions", before, after, before)]


def reward_numbers(run: RunDir, start: HalfWay) -> list[Number]:
    """Return how often the right answer of held-out pairs gets the higher score."""
    measured = _held_out(run, "accuracy")
    return [Number("held-out pairs of equal length ranked right", measured[0], measured[-1], RANKED)]


def _held_out(run: RunDir, name: str) -> list[float]:
    """Return a metric of all evaluations in order; the first is before training."""
    return [e.metrics[f"eval_{name}"] for _, e in sorted(load_history(run).evals.items())]


def _recipe(
    algorithm: str, steps: int, what: str, yaml: Yaml, measure: Measure, *, asks_questions: bool
) -> AlgorithmDemo:
    """Return a recipe with as many pairs as its steps take, so that every pair is used once."""
    count = PAIRS * steps
    words = (
        f"{what} {count:,} pairs of answers of the same length; it is tested on questions about other words."
    )
    return AlgorithmDemo(
        algorithm, words, steps, partial(lay_pairs, count=count), yaml, measure, asks_questions=asks_questions
    )


_HOLDS = "Direct preference optimisation: the model learns to make right answers more likely than wrong ones."
_SCORES = (
    "A reward model: the partly trained model's body with a new head, which learns to score right"
    " answers above wrong ones."
)
DPO = _recipe("dpo", 80, _HOLDS, dpo_yaml, dpo_numbers, asks_questions=True)
REWARD = _recipe("reward", 300, _SCORES, reward_yaml, reward_numbers, asks_questions=False)
