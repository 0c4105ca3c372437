"""A checkpoint within a rollout goes on with the same one, on any number of ranks, or is refused by key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.config.sections.training import TrainingSection
from paceline.plan.algorithms.rollout import updates_per_pass
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.training.checkpointing.resume import changed_keys
from paceline.training.checkpointing.resume_compatibility import other_rollout

WITHIN, BETWEEN = ("policy|weight|w", "rollout|rollout|0.row"), ("policy|weight|w",)
ON_POLICY = ("grpo", "rloo", "reinforce_plus_plus", "ppo")


def training(algorithm: str, own: dict[str, Any], **rollout: Any) -> TrainingSection:
    given = {"algorithm": algorithm, "gradient_accumulation_steps": 2, algorithm: own}
    return TrainingSection.model_validate({**given, "rollout": {"steps_per_generation": 4, **rollout}})


def refused(before: TrainingSection, now: TrainingSection, tensors: tuple[str, ...] = WITHIN) -> list[str]:
    state: Any = {"config": {"training": before.model_dump(mode="json")}, "data_parallel_size": 1}
    plan = SimpleNamespace(
        algorithm=now.algorithm,
        batch=SimpleNamespace(data_parallel_size=2, accumulation=1),  # resumed on two ranks
    )
    found = other_rollout(state, cast(Any, plan), now, tensors)
    assert {finding.code for finding in found} <= {"resume.other_rollout"} and all(d.hint for d in found)
    return [finding.where for finding in found]


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_what_makes_up_a_rollout(algorithm: str) -> None:
    spec = algorithm_spec(algorithm)
    before = training(algorithm, {spec.passes: 2, spec.kl: 0.0})
    changes: dict[str, TrainingSection] = {
        "training.rollout.steps_per_generation": training(
            algorithm, {spec.passes: 2, spec.kl: 0.0}, steps_per_generation=2
        ),
        f"training.{algorithm}.{spec.passes}": training(algorithm, {spec.passes: 1, spec.kl: 0.0}),
        f"training.{algorithm}.{spec.kl}": training(algorithm, {spec.passes: 2, spec.kl: 0.1}),
    }
    for key, now in changes.items():
        assert refused(before, now) == [key] and not refused(before, now, BETWEEN)
    same = training(algorithm, {spec.passes: 2, spec.kl: 0.0}, temperature=0.5, max_completion_length=9)
    assert not refused(before, same)


def test_other_ranks_have_the_same_rollouts() -> None:
    """A global batch of 8 is 4 × 2 micro-steps on one rank and 4 × 1 on two: two optimizer steps on both."""
    assert [updates_per_pass(training("grpo", {}), ranks) for ranks in (1, 2, 4)] == [2, 2, 2]
    derived = {"deepspeed": {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}}
    section = TrainingSection.model_validate(
        {**derived, "per_device_train_batch_size": 4, "rollout": {"steps_per_generation": 8}}
    )
    assert [updates_per_pass(section, ranks) for ranks in (1, 2, 4)] == [1, 2, 4]


def test_a_changed_section_is_said_key_by_key() -> None:
    before: Any = {"training": training("grpo", {}).model_dump(mode="json")}
    now: Any = {"training": training("grpo", {"beta": 0.1}, temperature=0.5).model_dump(mode="json")}
    assert [(d.where, d.found) for d in changed_keys({"config": before}, now)] == [
        ("training.grpo.beta", "0.1 now, 0.0 then"),
        ("training.rollout.temperature", "0.5 now, 1.0 then"),
    ]
    lora: Any = [{"lora": {"r": 4, "dropout": 0.0, "loraplus_lr_ratio": ratio}} for ratio in (None, 16.0)]
    assert [d.where for d in changed_keys({"config": lora[0]}, lora[1])] == ["lora.loraplus_lr_ratio"]
    converted = {"config": before, "converted_from": "a checkpoint of another program"}
    assert changed_keys(converted, now) == []  # its config holds defaults that nobody wrote
