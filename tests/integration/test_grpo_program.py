"""GRPO through the program: the same answers and the same losses on any strategy, resume in the middle of
a rollout, samples and rewards seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml
from test_train import tensors_of

from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, Samples, Step, read_events

pytestmark = [pytest.mark.integration]
REWARDS = [
    {"name": "regex", "options": {"pattern": "[a-m]"}},
    {"name": "length", "weight": 0.5, "options": {"target": 6}},
]


@pytest.fixture
def grpo(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    rows = [{"question": "say red " * (1 + i % 5) + str(i), "answer": "red"} for i in range(14)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name: str, ranks: int, dtype: str = "float64", **training: Any) -> dict[str, Any]:
        config = tiny(
            algorithm="grpo",
            output_dir=str(tmp_path / name),
            learning_rate=5e-3,
            max_steps=6,
            per_device_train_batch_size=8 // ranks,
            rollout={
                "rewards": REWARDS,
                "num_generations": 4,
                "max_completion_length": 8,
                "temperature": 0.9,
                "steps_per_generation": 2,
            },
            grpo={"beta": 0.05, "num_iterations": 2, "loss_type": "grpo", "rollout_correction": "truncate"},
            **training,
        )
        config["data"] |= {"train": str(tmp_path / "prompts.jsonl"), "max_length": 96}
        config["model"]["dtype"] = dtype
        config["model"]["config"]["initializer_range"] = 0.2
        return config

    return make


def train(paceline: Callable[..., Run], config: dict[str, Any], folder: Path, ranks: int) -> list[Step]:
    run = Path(config["training"]["output_dir"])
    done = paceline(
        "train", str(write_yaml(folder / f"{run.name}.yaml", config)), "--nproc", str(ranks), deadline=200
    )
    assert done.code == 0, done.err
    return [e for e in events_of(run) if isinstance(e, Step)]


def events_of(run: Path) -> list[Any]:
    return [record.event for record in read_events(RunDir.at(run).events(0))]


def numbers(step: Step) -> dict[str, float]:
    found = {name: value for name, value in step.extras.items() if not name.startswith(("time/", "sync_"))}
    return {**found, "loss": step.loss, "grad_norm": step.grad_norm or 0.0}


def test_every_strategy_and_a_resumed_run_learn_the_same(
    grpo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    ddp = {"distributed_strategy": "ddp", "save_strategy": "steps", "save_steps": 3}
    evaluated = {"eval_strategy": "steps", "eval_steps": 6}
    alone = grpo("alone", 1, **evaluated)
    alone["data"]["validation_split"] = 2
    alone["training"]["rollout"]["old_logprobs"] = "recompute"  # the others take sampling's
    steps = train(paceline, alone, tmp_path, 1)
    # two rollouts, of four steps each
    assert [len(s.extras) > 12 for s in steps] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    assert (
        steps[2].extras["kl"] > 1e-3 and max(s.extras["clip_low"] + s.extras["clip_high"] for s in steps) > 0
    )
    # sampled and recomputed log-probabilities
    assert 0.0 < max(s.extras["sampling_gap"] for s in steps[:2]) < 1e-10
    runs = {"whole": (2, ddp), "sharded": (2, {"distributed_strategy": "fsdp"})}
    for name, (ranks, training) in runs.items():
        config = grpo(name, ranks, **training)
        config["data"]["validation_split"] = 2
        other = train(paceline, config, tmp_path, ranks)
        assert [s.sample_digest for s in other] == [s.sample_digest for s in steps]
        for one, two in zip(steps, other, strict=True):
            assert numbers(two) == pytest.approx(numbers(one), abs=1e-10), f"{name}, step {one.step}"
    (evaluation,) = [e for e in events_of(tmp_path / "alone") if isinstance(e, Eval)]
    assert evaluation.rows == 2 and {"eval_reward", "eval_reward/regex", "eval_completion_length"} <= set(
        evaluation.metrics
    )
    samples = [e for e in events_of(tmp_path / "whole") if isinstance(e, Samples)]
    assert [e.step for e in samples] == [1, 5]
    assert {"prompt", "completion", "answer", "reward", "reward/regex", "ended"} <= set(samples[0].rows[0])

    part = grpo("part", 2, **ddp, resume_from_checkpoint=str(tmp_path / "whole/checkpoints/step-00000003"))
    part["data"]["validation_split"] = 2
    again = train(paceline, part, tmp_path, 2)  # step 4 takes answers that were made before the checkpoint
    assert [s.step for s in again] == [4, 5, 6]
    before = [s for s in events_of(tmp_path / "whole") if isinstance(s, Step)][3:]
    assert [numbers(s) for s in again] == [numbers(s) for s in before]
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000006") for name in ("whole", "part"))
    assert one == other and any("rollout" in name for name in one)


def test_refused_before_anything_starts(
    grpo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    config = grpo("run", 1)
    config["training"]["rollout"] |= {"num_generations": 3, "rewards": ["numerc"]}
    done = paceline("train", str(write_yaml(tmp_path / "run.yaml", config)))
    assert done.code == 2 and "rollout.groups" in done.err
    config["training"]["rollout"] |= {"num_generations": 4}
    done = paceline("train", str(write_yaml(tmp_path / "run.yaml", config)))
    assert done.code == 2 and "did you mean 'numeric'" in done.err
