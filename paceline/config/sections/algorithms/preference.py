"""Options of preference training: ``training.reward:``, ``training.dpo:``, ``training.cpo:`` and others."""

from __future__ import annotations

from collections.abc import Mapping as AnyMapping
from typing import Annotated

from pydantic import Field, model_validator

from paceline.config.sections.types import Bool, Float, OptFloat, OptInt, OptPath, Section, Word
from paceline.core.json_types import Json, JsonObject

DPO_LOSSES = ("sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down")
CPO_LOSSES = ("sigmoid", "hinge", "ipo", "simpo")


class RewardOptions(Section):
    """Reward models: loss -log σ(r_chosen - r_rejected - margin), where margin is a column of the data."""

    center_rewards_coefficient: Float = Field(
        default=0.0,
        ge=0,
        description=(
            "With algorithm: reward, coefficient of (r_chosen + r_rejected)², which centres "
            "rewards around 0; 0: off."
        ),
    )


class DpoOptions(Section):
    """DPO; option names as in TRL's DPOConfig where it has them."""

    beta: Float = Field(
        default=0.1,
        gt=0,
        description=(
            "With algorithm: dpo, strength of the KL constraint: how closely the policy stays "
            "to the reference (IPO's τ)."
        ),
    )
    loss_type: Annotated[str, Word(*DPO_LOSSES)] = Field(
        default="sigmoid",
        description=(
            "Loss on the difference of a pair's log-ratios. TRL's `sigmoid_norm` means "
            "sigmoid with length_normalized; its list `[sigmoid, sft]` means rpo_alpha."
        ),
    )
    loss_weights: tuple[float, ...] | None = Field(
        default=None,
        description=(
            "TRL's weights for a list under loss_type, such as [1.0, 0.2] for `[sigmoid, "
            "sft]`; converted to rpo_alpha."
        ),
    )
    label_smoothing: Float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Probability that a preference label is flipped (sigmoid and robust).",
    )
    length_normalized: Bool = Field(
        default=False,
        description=(
            "Log-ratios are means over an answer's tokens instead of sums (for loss_type: ipo "
            "this is what TRL computes)."
        ),
    )
    reference_free: Bool = Field(
        default=False,
        description="Use a reference that gives every answer the same probability: no reference model.",
    )
    rpo_alpha: OptFloat = Field(
        default=None,
        ge=0,
        description="Coefficient of an SFT loss on chosen answers (mean over their tokens); off when empty.",
    )
    mean_of_means: Bool = Field(
        default=False,
        description=(
            "The SFT loss is the mean over chosen answers of each one's mean (as in LLaMA-Factory), not over"
            " all their tokens."
        ),
    )
    ref_model: OptPath = Field(
        default=None,
        description="The reference model: a folder or a hub name; the initial model when empty.",
    )
    precompute_ref_log_probs: Bool = Field(
        default=False,
        description=(
            "Compute the reference's log-probabilities once before training and store them in "
            "the data cache, so that training loads no reference model."
        ),
    )
    precompute_ref_batch_size: OptInt = Field(
        default=None,
        ge=1,
        description="Rows per process and batch when precomputing; per_device_train_batch_size when empty.",
    )

    @model_validator(mode="before")
    @classmethod
    def _trl_losses(cls, values: Json) -> Json:
        """Convert TRL's spellings of ``loss_type``: ``sigmoid_norm``, a list of one, a list with ``sft``."""
        return _one_loss(dict(values)) if isinstance(values, AnyMapping) else values


class CpoOptions(Section):
    """CPO; option names and defaults as in TRL's CPOConfig."""

    beta: Float = Field(
        default=0.1,
        gt=0,
        description="With algorithm: cpo, scale of the difference of log-likelihoods (IPO's τ).",
    )
    loss_type: Annotated[str, Word(*CPO_LOSSES)] = Field(
        default="sigmoid",
        description="Loss of a pair; ipo and simpo compare means over an answer's tokens, the others sums.",
    )
    label_smoothing: Float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Probability that a preference label is flipped (sigmoid and simpo).",
    )
    cpo_alpha: Float = Field(
        default=1.0,
        ge=0,
        description="Coefficient of an SFT loss on chosen answers (mean over their tokens); 0: off.",
    )
    simpo_gamma: OptFloat = Field(
        default=None, ge=0, description="SimPO's margin γ, only with loss_type: simpo; 0.5 when empty."
    )

    @model_validator(mode="after")
    def _of_its_loss(self) -> CpoOptions:
        """Refuse options that the chosen loss does not have."""
        if self.simpo_gamma is not None and self.loss_type != "simpo":
            raise ValueError(f"simpo_gamma is SimPO's margin, and loss_type is {self.loss_type}")
        if self.label_smoothing and self.loss_type not in ("sigmoid", "simpo"):
            raise ValueError(f"label_smoothing: the loss {self.loss_type} has no flipped labels in it")
        return self


class OrpoOptions(Section):
    """ORPO; option names as in TRL's ORPOConfig."""

    beta: Float = Field(
        default=0.1,
        ge=0,
        description=(
            "With algorithm: orpo, coefficient of the odds-ratio loss that is added to the "
            "SFT loss (the paper's λ)."
        ),
    )
    mean_of_means: Bool = Field(
        default=False,
        description=(
            "The SFT loss is the mean over chosen answers of each one's mean (as in LLaMA-Factory), not over"
            " all their tokens."
        ),
    )


class SimpoOptions(Section):
    """SimPO; option names and defaults as in TRL's CPOConfig with ``loss_type: simpo``."""

    beta: Float = Field(
        default=0.1,
        gt=0,
        description="With algorithm: simpo, scale of the rewards; the paper uses 2.0 to 2.5.",
    )
    simpo_gamma: Float = Field(
        default=0.5, ge=0, description="Margin γ between the rewards of a pair; the paper uses 0.3 to 1.6."
    )
    label_smoothing: Float = Field(
        default=0.0, ge=0, lt=0.5, description="Probability that a preference label is flipped."
    )
    cpo_alpha: Float = Field(
        default=0.0,
        ge=0,
        description="Coefficient of an SFT loss on chosen answers (mean over their tokens); 0: off.",
    )


def _one_loss(values: JsonObject) -> JsonObject:
    # Bring loss_type and loss_weights to {name: weight}
    weights = values.pop("loss_weights", None)
    names: Json = values.get("loss_type")
    if weights is not None and not isinstance(names, (list, tuple)):
        raise ValueError("loss_weights belong to a list under loss_type")
    if not isinstance(names, (list, tuple)):
        if not isinstance(names, str):
            return values  # empty or no name: left to the field's validator
        names = [names]
    numbers = [1.0] * len(names) if weights is None else _numbers(weights)
    by_name = {str(name): weight for name, weight in zip(names, numbers, strict=False)}
    if not len(numbers) == len(names) == len(by_name):
        raise ValueError("loss_type names each loss once, and loss_weights hold one number for each")
    # One loss of weight 1, with an optional SFT term
    alpha = by_name.pop("sft", None)
    if list(by_name.values()) != [1.0]:
        raise ValueError(
            f"loss_type accepts one of {', '.join(DPO_LOSSES)} with weight 1, and optionally sft"
        )
    name = next(iter(by_name))
    values["loss_type"] = name
    if name == "sigmoid_norm":
        values |= {"loss_type": "sigmoid", "length_normalized": True}
    if alpha is not None:
        values["rpo_alpha"] = alpha
    return values


def _numbers(value: Json) -> list[float]:
    """Return the numbers of a list; nothing for any other value."""
    items = value if isinstance(value, (list, tuple)) else ()
    numbers = [float(item) for item in items if isinstance(item, (int, float)) and not isinstance(item, bool)]
    return numbers if len(numbers) == len(items) else []


class KtoOptions(Section):
    """KTO; option names as in TRL's KTOConfig."""

    beta: Float = Field(
        default=0.1,
        gt=0,
        description=(
            "With algorithm: kto, strength of the KL constraint: how closely the policy stays "
            "to the reference."
        ),
    )
    loss_type: Annotated[str, Word("kto", "apo_zero_unpaired")] = Field(
        default="kto",
        description=(
            "kto compares an answer's log-ratio with the batch's KL estimate; "
            "apo_zero_unpaired with 0, which saves two forward passes."
        ),
    )
    desirable_weight: Float = Field(
        default=1.0,
        ge=0,
        description="Loss weight of answers labelled true; for unbalanced labels see"
        " docs/how-to/preference.md.",
    )
    undesirable_weight: Float = Field(default=1.0, ge=0, description="Loss weight of answers labelled false.")
    ref_model: OptPath = Field(
        default=None,
        description="The reference model: a folder or a hub name; the initial model when empty.",
    )
