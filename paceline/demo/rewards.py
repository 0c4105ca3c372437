"""Reinforcement learning demos: the model answers questions itself and gets a reward for right answers."""

from __future__ import annotations

from pathlib import Path

from paceline.core.rundir import RunDir
from paceline.demo.files import quoted
from paceline.demo.further import AlgorithmDemo
from paceline.demo.numbers import Number
from paceline.demo.report import read_answers
from paceline.demo.start import HalfWay

GAIN = 0.25
ANSWERS, GROUP = 256, 8  # answers per step over all processes; GRPO's answers per question


def lay_nothing(root: Path, start: HalfWay, seed: int) -> None:
    """Write nothing: the questions are the SFT demo's."""


def _yaml(
    run: RunDir, start: HalfWay, seed: int, steps: int, nproc: int, *, algorithm: str, group: int, own: str
) -> str:
    return f"""\
# The demo's config: change a value and train again, e.g.
#   paceline train THIS_FILE training.output_dir=outputs/mine training.learning_rate=1e-4 --nproc 2

model:
  name_or_path: {quoted(start.model)}

data:
  train: {quoted(start.material.train)}      # questions; the answers in them only judge
  max_length: 64                # question and answer together

training:
  algorithm: {algorithm}
  distributed_strategy: {"ddp" if nproc > 1 else "single"}
  mixed_precision: "no"         # so small a model gains nothing from bf16
  per_device_train_batch_size: {max(GROUP, ANSWERS // nproc)}   # answers
  num_train_epochs: 1000        # max_steps ends it
  max_steps: {steps}
  learning_rate: 5e-4
  lr_scheduler_type: cosine
  warmup_steps: {max(1, min(20, steps // 10))}
  adam_beta2: 0.99
  max_grad_norm: 0.3
  seed: {seed}
  rollout:
    rewards: [exact_match]      # 1 for the right answer, 0 for any other
    num_generations: {group}          # answers to each question
    max_completion_length: 8
    temperature: 1.0
    generation_rows: 128
{own}
  save_strategy: steps
  save_steps: {max(1, steps // 6)}
  logging_steps: 20
  report_to: [tensorboard]
  output_dir: {quoted(run.root)}
"""


def grpo_yaml(root: Path, run: RunDir, start: HalfWay, seed: int, steps: int, nproc: int) -> str:
    """Return the complete config of the GRPO demo."""
    own = """\
    filter_groups: true         # questions whose answers are all right, or all wrong, teach nothing
  grpo:
    loss_type: dapo
    scale_rewards: group"""
    return _yaml(run, start, seed, steps, nproc, algorithm="grpo", group=GROUP, own=own)


def ppo_yaml(root: Path, run: RunDir, start: HalfWay, seed: int, steps: int, nproc: int) -> str:
    """Return the complete config of the PPO demo."""
    own = """\
  ppo:
    num_ppo_epochs: 1
    kl_coef: 0.0                # no reference: the only wish is to be right
    lam: 0.95
    vf_coef: 1.0"""
    return _yaml(run, start, seed, steps, nproc, algorithm="ppo", group=1, own=own)


def exact_match_gain(run: RunDir, start: HalfWay) -> list[Number]:
    """Return exact match of greedy answers to the held-out questions."""
    answers = read_answers(run)
    before, after = float(answers[0]["exact_match"]), float(answers[-1]["exact_match"])
    return [Number("exact match on held-out questions", before, after, before + GAIN)]


_TOLD = "from here on the model only learns whether an answer is right."
GRPO = AlgorithmDemo(
    "grpo",
    f"Group relative policy optimisation: {GROUP} answers to each of {ANSWERS // GROUP} questions"
    f" per step; {_TOLD}",
    600,
    lay_nothing,
    grpo_yaml,
    exact_match_gain,
)
PPO = AlgorithmDemo(
    "ppo",
    f"Proximal policy optimisation: one answer to each of {ANSWERS} questions per step, and a"
    f" second model that learns the value of each letter; {_TOLD}",
    300,
    lay_nothing,
    ppo_yaml,
    exact_match_gain,
)
