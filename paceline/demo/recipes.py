"""Demos that continue from the SFT demo's half-trained model: a recipe each, with preferences or rewards.

DPO makes right answers likelier than wrong ones, and a reward model tells them apart. In reinforcement
learning (GRPO, PPO) the model answers questions itself and gets a reward for right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.rundir import RunDir
from paceline.demo.files import MAX_LENGTH, quoted
from paceline.demo.questions import pairs_of, training, write_pairs
from paceline.demo.report import Number, read_answers
from paceline.demo.steps import HalfWay
from paceline.runlog.history import load_history

PAIRS = 64  # per step, over all processes
HELD_OUT_EACH = 3  # pairs per held-out question
RANKED = 0.85  # share of held-out pairs in the right order
GAIN = 0.25  # of exact match over the start
ANSWERS, GROUP = 256, 8  # answers per step over all processes; GRPO's answers per question


def lay_pairs(root: Path, start: HalfWay, seed: int, *, count: int) -> None:
    """Write ``pairs.jsonl`` from training questions and ``held_out_pairs.jsonl`` from the held-out ones.

    The two have no words in common.
    """
    folder = root / "material"
    folder.mkdir(parents=True, exist_ok=True)
    questions = start.material.questions
    write_pairs(folder / "pairs.jsonl", pairs_of(training(seed, count, {q.word for q in questions}), seed))
    write_pairs(folder / "held_out_pairs.jsonl", pairs_of(list(questions) * HELD_OUT_EACH, seed + 1))


def _pair_files(root: Path, start: HalfWay) -> str:
    material = root / "material"
    return f"""\
  train: {quoted(material / "pairs.jsonl")}            # prompt, chosen, rejected
  eval: {quoted(material / "held_out_pairs.jsonl")}
  max_length: {MAX_LENGTH}"""


def _question_file(root: Path, start: HalfWay) -> str:
    return f"""\
  train: {quoted(start.material.train)}      # questions; the answers in them only judge
  max_length: 64                # question and answer together"""


_EVALUATIONS = """\
  eval_on_start: true
  eval_strategy: steps
  eval_steps: {every}
  per_device_eval_batch_size: 64"""


def _rollout(group: int) -> str:
    return f"""\
  rollout:
    rewards: [exact_match]      # 1 for the right answer, 0 for any other
    num_generations: {group}          # answers to each question
    max_completion_length: 8
    temperature: 1.0
    generation_rows: 128"""


@dataclass(frozen=True)
class AlgorithmDemo:
    """The parts of one algorithm's demo.

    words           a description of the demo, for the terminal
    steps           optimizer steps that reach the goal
    data            (the demo's folder, start) -> lines of the section data
    rows            (number per step over all processes, minimum per process, name of the rows)
    values          learning rate, longest warmup, gradient norm, logging_steps
    settings        further lines of the section training
    measure         the numbers of the finished run
    pairs           whether it learns from pairs, as many as its steps take, so that every pair is used once
    has_questions  whether every checkpoint answers the held-out questions before that
    """

    algorithm: str
    words: str
    steps: int
    data: Callable[[Path, HalfWay], str]
    rows: tuple[int, int, str]
    values: Mapping[str, str]
    settings: str
    measure: Callable[[RunDir], list[Number]]
    pairs: bool = False
    has_questions: bool = True

    def lay(self, root: Path, start: HalfWay, seed: int) -> None:
        """Write the data that the YAML reads, below the demo's folder; the questions are those of the SFT
        demo."""
        if self.pairs:
            lay_pairs(root, start, seed, count=PAIRS * self.steps)

    def yaml(self, root: Path, start: HalfWay, seed: int, steps: int, nproc: int) -> str:
        """Return the complete config of a run below ``root``."""
        every, (rows, least, unit) = max(1, steps // 6), self.rows
        return f"""\
# The demo's config: change a value and train again, e.g.
#   paceline train THIS_FILE training.output_dir=outputs/mine training.learning_rate=1e-4 --nproc 2

model:
  name_or_path: {quoted(start.model)}

data:
{self.data(root, start)}

training:
  algorithm: {self.algorithm}
  distributed_strategy: {"ddp" if nproc > 1 else "single"}
  mixed_precision: "no"         # so small a model gains nothing from bf16
  per_device_train_batch_size: {max(least, rows // nproc)}   # {unit}
  num_train_epochs: 1000        # max_steps ends it
  max_steps: {steps}
  learning_rate: {self.values["learning_rate"]}
  lr_scheduler_type: cosine
  warmup_steps: {max(1, min(int(self.values["warmup"]), steps // 10))}
  adam_beta2: 0.99
  max_grad_norm: {self.values["max_grad_norm"]}
  seed: {seed}
{self.settings.replace("{every}", str(every))}
  save_strategy: steps
  save_steps: {every}
  logging_steps: {self.values["logging_steps"]}
  report_to: [tensorboard]
  output_dir: {quoted(root / self.algorithm)}
"""


def _dpo_numbers(run: RunDir) -> list[Number]:
    """Return how often the chosen answer gained more than the rejected one, and exact match."""
    before, after = _exact_matches(run)
    gained = _held_out(run, "rewards/accuracies")[-1]
    ranked = Number("held-out pairs: the right answer gained more", None, gained, RANKED)
    return [ranked, Number("exact match on held-out questions", before, after, before)]


def _reward_numbers(run: RunDir) -> list[Number]:
    """Return how often the right answer of held-out pairs gets the higher score."""
    before, *_, after = _held_out(run, "accuracy")
    return [Number("held-out pairs of equal length ranked right", before, after, RANKED)]


def _exact_match_gain(run: RunDir) -> list[Number]:
    """Return exact match of greedy answers to the held-out questions."""
    before, after = _exact_matches(run)
    return [Number("exact match on held-out questions", before, after, before + GAIN)]


def _exact_matches(run: RunDir) -> tuple[float, float]:
    answers = read_answers(run)
    return float(answers[0]["exact_match"]), float(answers[-1]["exact_match"])


def _held_out(run: RunDir, name: str) -> list[float]:
    """Return a metric of all evaluations in order; the first is before training."""
    return [e.metrics[f"eval_{name}"] for _, e in sorted(load_history(run).evals.items())]


_OF_PAIRS = "pairs of answers of the same length; it is tested on questions about other words."
_ONLY_RIGHT = "from here on the model only learns whether an answer is right."
_PAIR_VALUES = {"warmup": "10", "max_grad_norm": "1.0", "logging_steps": "10"}
_ANSWER_VALUES = {"learning_rate": "5e-4", "warmup": "20", "max_grad_norm": "0.3", "logging_steps": "20"}
_ROWS_OF_PAIRS, _ROWS_OF_ANSWERS = (PAIRS, 1, "pairs"), (ANSWERS, GROUP, "answers")
RECIPES: Mapping[str, AlgorithmDemo] = {
    recipe.algorithm: recipe
    for recipe in (
        AlgorithmDemo(
            "dpo",
            "Direct preference optimisation: the model learns to make right answers more likely than wrong"
            f" ones. {PAIRS * 80:,} {_OF_PAIRS}",
            80,
            _pair_files,
            _ROWS_OF_PAIRS,
            {"learning_rate": "5e-4", **_PAIR_VALUES},
            f"""\
  dpo:
    beta: 0.1
    rpo_alpha: 1.0              # right answers become likelier in themselves, too
    precompute_ref_log_probs: true
{_EVALUATIONS}""",
            _dpo_numbers,
            pairs=True,
        ),
        AlgorithmDemo(
            "reward",
            "A reward model: the partly trained model's body with a new head, which learns to score right"
            f" answers above wrong ones. {PAIRS * 300:,} {_OF_PAIRS}",
            300,
            _pair_files,
            _ROWS_OF_PAIRS,
            {"learning_rate": "1e-3", **_PAIR_VALUES},
            f"""\
  reward:
    center_rewards_coefficient: 0.01
{_EVALUATIONS}""",
            _reward_numbers,
            pairs=True,
            has_questions=False,
        ),
        AlgorithmDemo(
            "grpo",
            f"Group relative policy optimisation: {GROUP} answers to each of {ANSWERS // GROUP} questions"
            f" per step; {_ONLY_RIGHT}",
            600,
            _question_file,
            _ROWS_OF_ANSWERS,
            _ANSWER_VALUES,
            f"""\
{_rollout(GROUP)}
    filter_groups: true         # questions whose answers are all right, or all wrong, teach nothing
  grpo:
    loss_type: dapo
    scale_rewards: group""",
            _exact_match_gain,
        ),
        AlgorithmDemo(
            "ppo",
            f"Proximal policy optimisation: one answer to each of {ANSWERS} questions per step, and a"
            f" second model that learns the value of each letter; {_ONLY_RIGHT}",
            300,
            _question_file,
            _ROWS_OF_ANSWERS,
            _ANSWER_VALUES,
            f"""\
{_rollout(1)}
  ppo:
    num_ppo_epochs: 1
    kl_coef: 0.0                # no reference: the only wish is to be right
    lam: 0.95
    vf_coef: 1.0""",
            _exact_match_gain,
        ),
    )
}
