"""Specs of on-policy algorithms: PPO, GRPO, RLOO and REINFORCE++."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.algorithms.base import Adapter, AlgorithmSpec, Training, switched_off
from paceline.plan.parts import OtherModel
from paceline.plan.plan import Decision


@dataclass(frozen=True)
class OnPolicySpec(AlgorithmSpec):
    """A KL to the reference, and optionally a reward model and a value model."""

    def named_roles(self) -> tuple[str, ...]:
        return (*self.named, *(role for role in ("value", "reward") if role not in self.named))

    def model_named(self, training: Training, role: str) -> str | None:
        """The reward model is named in the rewards; the value model starts from it by default."""
        named = super().model_named(training, role)
        if named is not None or role not in ("value", "reward"):
            return named
        judges = [r for r in (training.rollout.rewards if training.rollout else ()) if r.name == "model"]
        judge = judges[0].options.get("model") if judges else None
        return None if judge is None else str(judge)

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        reference, decisions = self._reference(training, adapter)
        found: dict[str, OtherModel] = {}
        if reference == "live":
            found["reference"] = OtherModel(False, self.model_named(training, "reference"))
        if self.value_model:
            name = self.model_named(training, "value")
            found["value"] = OtherModel(True, name)
            start = name or "the model that training starts from, with a new head"
            own = ", with its own adapter" if adapter is not None else ""
            decisions += (Decision("value model", "trained", f"{start}{own}"),)
        judge = self.model_named(training, "reward")
        if judge is not None:
            found["reward"] = OtherModel(False, judge)
            decisions += (Decision("reward model", "frozen", judge),)
        return reference, found, decisions

    def _reference(self, training: Training, adapter: Adapter) -> tuple[str, tuple[Decision, ...]]:
        """Return (``Plan.reference``, decisions) for the KL's reference."""
        key = self.key
        if not self.kl:
            return "", ()
        if not self.options_of(training)[self.kl]:
            why = f"{key}.{self.kl} is 0, so no reference is used"
            return "", (Decision("reference", "none", why),)
        model = self.model_named(training, "reference")
        if switched_off(adapter, model):
            return "adapter", (
                Decision("reference", "adapter off", "the policy itself with its adapter switched off"),
            )
        named = f"{key}.ref_model: {model}" if model else "the model that training starts from"
        return "live", (Decision("reference", "live", f"{named}, kept frozen in addition to the policy"),)


GRPO = OnPolicySpec(
    "grpo",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model"},
    frozen_beside=1,
    group_relative=True,
    num_generations=8,
    kl="beta",
    passes="num_iterations",
)
RLOO = OnPolicySpec(
    "rloo",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model"},
    frozen_beside=1,
    group_relative=True,
    num_generations=2,
    kl="beta",
    passes="num_iterations",
)
REINFORCE_PLUS_PLUS = OnPolicySpec(
    "reinforce_plus_plus",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model"},
    frozen_beside=1,
    group_option="group_baseline",
    kl="beta",
    passes="num_iterations",
)
PPO = OnPolicySpec(
    "ppo",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model", "value": "value_model"},
    frozen_beside=2,
    trained_beside=1,
    value_model=True,
    kl="kl_coef",
    passes="num_ppo_epochs",
)
