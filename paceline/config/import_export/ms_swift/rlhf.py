"""ms-swift's `rlhf`: losses, rewards and batches of answers, which no row of its table can say."""

from __future__ import annotations

from paceline.config.import_export.key_reader import KeyReader
from paceline.config.import_export.ms_swift.data import completion_length
from paceline.config.import_export.ms_swift.machine import processes
from paceline.core.json_types import Json

#: ``rlhf_type`` → our algorithm
ALGORITHMS = {
    "dpo": "dpo",
    "kto": "kto",
    "rm": "reward",
    "grpo": "grpo",
    "ppo": "ppo",
    "orpo": "orpo",
    "simpo": "simpo",
    "cpo": "cpo",
}
_LOSS = {"dpo": "sigmoid", "cpo": "sigmoid", "kto": "kto", "grpo": "grpo"}
_LOSSES = {
    "dpo": ("sigmoid", "hinge", "ipo", "robust"),
    "cpo": ("sigmoid", "hinge", "ipo"),
    "kto": ("kto", "apo_zero_unpaired"),
    "grpo": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo"),
    "simpo": ("simpo",),
}


def loss(reading: KeyReader) -> None:
    """Decide the loss; without a value the one that ms-swift starts with."""
    word, ours = str(reading.facts["word"]), reading.facts["algorithm"]
    value = reading.value("loss_type")
    value = _LOSS.get(word) if value is None else value
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if word == "simpo":
        reading.mapped("loss_type", ("training.algorithm",)) if value in (None, "simpo") else reading.lose(
            "loss_type", f"{value} under simpo is CPO: set rlhf_type: cpo"
        )
    elif value in _LOSSES[word]:
        reading.keep("loss_type", f"training.{ours}.loss_type", value)
        if (word, value) == ("dpo", "ipo"):
            reading.set("training.dpo.length_normalized", True, "loss_type", "means over an answer's tokens")
    elif word == "dpo" and value == ["sigmoid", "sft"]:
        weights = reading.given.get("loss_weights") or [1.0, 1.0]
        if isinstance(weights, list) and len(weights) == 2 and weights[0] == 1:
            _supervised(reading, "loss_type", weights[1])
            reading.mapped("loss_weights", ("training.dpo.rpo_alpha",))
        else:
            reading.lose("loss_weights", "the first weight must be 1")
    else:
        reading.lose("loss_type", f"the loss {value} is not supported; {', '.join(_LOSSES[word])} are")


def _supervised(reading: KeyReader, key: str, weight: Json) -> None:
    """The loss of the chosen answers: a mean over a micro-batch's tokens there, over a step's here."""
    found = reading.result.settings.get("training.gradient_accumulation_steps")
    (
        reading.keep
        if reading.given.get("gradient_accumulation_steps", found.value if found else None) == 1
        else reading.differs
    )(
        key,
        "training.dpo.rpo_alpha",
        weight,
        "ms-swift averages it over the tokens of each micro-batch, here over those of the step",
    )


def supervised_weight(reading: KeyReader) -> None:
    """Decide ``rpo_alpha``, the weight of the loss of the chosen answers."""
    if reading.is_given("rpo_alpha"):
        _supervised(reading, "rpo_alpha", reading.given["rpo_alpha"])


def completion(reading: KeyReader) -> None:
    """Set the limit of generated answers."""
    reading.set("training.rollout.max_completion_length", completion_length(reading), "max_completion_length")


def generations(reading: KeyReader) -> None:
    """``generation_batch_size`` counts answers over all processes, ``steps_per_generation`` micro-batches."""
    rows, whole = reading.value("per_device_train_batch_size"), reading.given.get("generation_batch_size")
    if reading.is_given("steps_per_generation"):
        steps = reading.given["steps_per_generation"]
        reading.keep("steps_per_generation", "training.rollout.steps_per_generation", steps)
        reading.mapped("generation_batch_size", ("training.rollout.steps_per_generation",))
    elif (
        isinstance(whole, int)
        and isinstance(rows, int)
        and rows > 0
        and whole % (rows * processes(reading)) == 0
    ):
        steps = whole // (rows * processes(reading))
        reading.keep("generation_batch_size", "training.rollout.steps_per_generation", steps)
    elif whole:
        reading.lose("generation_batch_size", "it is no multiple of the rows of all processes")


def rewards(reading: KeyReader) -> None:
    """Decide reward functions and models."""
    names, models = reading.given.get("reward_funcs"), reading.given.get("reward_model")
    if names:
        says = "reward functions are written as training.rollout.rewards (docs/rollouts.md)"
        reading.lose("reward_funcs", says)
        reading.lose("reward_weights", says) if reading.is_given("reward_weights") else None
    listed = models if isinstance(models, list) else [models] if models else []
    if listed:
        weights = reading.given.get("reward_weights")
        shares = weights if isinstance(weights, list) else [1.0] * len(listed)
        made: list[Json] = [
            {"name": "model", "options": {"model": name}, "weight": share}
            for name, share in zip(listed, shares[-len(listed) :], strict=False)
        ]
        reading.keep("reward_model", "training.rollout.rewards", made)
        if not names:
            reading.mapped("reward_weights", ("training.rollout.rewards",))
