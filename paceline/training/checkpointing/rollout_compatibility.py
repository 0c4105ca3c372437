"""Check that a checkpoint saved within a rollout fits this run's rollouts. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.plan.algorithms.rollout import updates_per_pass
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.plan import Plan
from paceline.training import codes

_ROLLOUT = "rollout"
_STEPS = f"training.{_ROLLOUT}.steps_per_generation"


def other_rollout(
    state: JsonObject, plan: Plan, training: TrainingSection, tensors: Collection[str]
) -> list[Diagnostic]:
    """Return errors if the rest of the rollout in the checkpoint cannot be trained on as this run is set.

    ``training``: the config's section; ``tensors``: the names in the checkpoint's manifest. Between two
    rollouts these keys may change.
    """
    spec = algorithm_spec(plan.algorithm)
    if not spec.on_policy or not any(name.startswith(f"{_ROLLOUT}|") for name in tensors):
        return []
    saved = as_object(as_object(state.get("config")).get("training"))
    ranks = int(as_number(state.get("data_parallel_size", plan.batch.data_parallel_size)))
    before = _made_up(spec, TrainingSection.model_validate(saved), ranks)
    now = _made_up(spec, training, plan.batch.data_parallel_size)
    return [
        codes.RESUME_OTHER_ROLLOUT(key, f"{before[key]} in the checkpoint, {now[key]} now", words=words)
        for key, words in _words(spec).items()
        if before[key] != now[key]
    ]


def _words(spec: AlgorithmSpec) -> dict[str, str]:
    return {
        _STEPS: "number of optimizer steps in a pass over a rollout",
        f"{spec.key}.{spec.passes}": "number of passes over a rollout",
        f"{spec.key}.{spec.kl}": "reference",
    }


def _made_up(spec: AlgorithmSpec, training: TrainingSection, ranks: int) -> dict[str, Json]:
    """Return what the answers in a checkpoint depend on, by config key."""
    kl = "a KL to it" if spec.kl and spec.options_of(training)[spec.kl] else "none"
    return {
        _STEPS: updates_per_pass(training, ranks),
        f"{spec.key}.{spec.passes}": spec.num_passes(training),
        f"{spec.key}.{spec.kl}": kl,
    }
