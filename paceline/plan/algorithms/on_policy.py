"""Specs of on-policy algorithms: PPO, GRPO, RLOO and REINFORCE++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.algorithms.on_policy import GrpoOptions, PpoOptions, ReinforcePlusPlusOptions
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.algorithms.spec import Adapter, AlgorithmSpec, Training, switched_off
from paceline.plan.plan import Decision, JobToCheck, OtherModel


@dataclass(frozen=True)
class OnPolicySpec(AlgorithmSpec):
    """A KL to the reference, and optionally a reward model and a value model."""

    def named_roles(self) -> tuple[str, ...]:
        return (*self.named, *(role for role in ("value", "reward") if role not in self.named))

    def model_named(self, training: Training, role: str) -> str | None:
        """The reward model is named in the rewards; the value model starts from it by default."""
        name = super().model_named(training, role)
        if name is not None or role not in ("value", "reward"):
            return name
        judges = [r for r in (training.rollout.rewards if training.rollout else ()) if r.name == "model"]
        judge = judges[0].options.get("model") if judges else None
        return None if judge is None else str(judge)

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        reference, decisions = self._reference(training, adapter)
        models: dict[str, OtherModel] = {}
        if reference == "live":
            models["reference"] = OtherModel(False, self.model_named(training, "reference"))
        if self.value_model:
            name = self.model_named(training, "value")
            models["value"] = OtherModel(True, name)
            start = name or "the model that training starts from, with a new head"
            adapter_note = ", with its own adapter" if adapter is not None else ""
            decisions += (Decision("value model", "trained", f"{start}{adapter_note}"),)
        judge = self.model_named(training, "reward")
        if judge is not None:
            models["reward"] = OtherModel(False, judge)
            decisions += (Decision("reward model", "frozen", judge),)
        return reference, models, decisions

    def _reference(self, training: Training, adapter: Adapter) -> tuple[str, tuple[Decision, ...]]:
        """Return (``Plan.reference``, decisions) for the KL's reference."""
        key = self.key
        if not self.kl:
            return "", ()
        if not self.options_of(training)[self.kl]:
            return "", (Decision("reference", "none", f"{key}.{self.kl} is 0, so no reference is used"),)
        model = self.model_named(training, "reference")
        if switched_off(adapter, model):
            return "adapter", (
                Decision("reference", "adapter off", "the policy itself with its adapter switched off"),
            )
        source = f"{key}.ref_model: {model}" if model else "the model that training starts from"
        return "live", (Decision("reference", "live", f"{source}, kept frozen in addition to the policy"),)


@dataclass(frozen=True)
class GrpoSpec(OnPolicySpec):
    """Checks GRPO's bounds of the importance weight, and the correction for sampling's log-probabilities."""

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        options, rollout = job.own_options, job.config.training.rollout
        if not isinstance(options, GrpoOptions):
            return
        if (
            (options.rollout_correction != "none")
            and rollout is not None
            and rollout.old_logprobs == "sampling"
        ):
            yield job.at(
                codes.ROLLOUT_CORRECTION(), "training.rollout.old_logprobs", f"{self.key}.rollout_correction"
            )
        if options.loss_type == "cispo":
            yield from self._cispo(job, options)

    def _cispo(self, job: JobToCheck, options: GrpoOptions) -> Iterator[Diagnostic]:
        key = self.key
        if options.epsilon_high is None or options.epsilon_high <= 1:
            yield job.at(codes.GRPO_CISPO_BOUND(), f"{key}.epsilon_high", f"{key}.loss_type")
        for name, used in (("epsilon", job.given(f"{key}.epsilon")), ("delta", options.delta is not None)):
            if used:
                yield job.at(codes.GRPO_CISPO_UNUSED(name=name), f"{key}.{name}", f"{key}.loss_type")


@dataclass(frozen=True)
class KlPenalty(OnPolicySpec):
    """The KL is a penalty in the reward or a term of the loss, by ``kl_in``."""

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        options, key = job.own_options, self.key
        if not isinstance(options, (PpoOptions, ReinforcePlusPlusOptions)):
            return
        if getattr(options, self.kl) and options.kl_in == "loss" and options.kl_estimator == "k1":
            yield job.at(codes.PPO_KL_ESTIMATOR(), f"{key}.kl_estimator", f"{key}.kl_in")
        if isinstance(options, PpoOptions) and options.adap_kl_ctrl and not options.kl_coef:
            yield job.at(codes.PPO_ADAPTIVE_KL(), f"{key}.kl_coef", f"{key}.adap_kl_ctrl")


GRPO = GrpoSpec(
    "grpo",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model"},
    same_tokens=("reference",),
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
    same_tokens=("reference",),
    frozen_beside=1,
    group_relative=True,
    num_generations=2,
    kl="beta",
    passes="num_iterations",
)
REINFORCE_PLUS_PLUS = KlPenalty(
    "reinforce_plus_plus",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model"},
    same_tokens=("reference",),
    frozen_beside=1,
    group_option="group_baseline",
    kl="beta",
    passes="num_iterations",
)
PPO = KlPenalty(
    "ppo",
    "prompts",
    outputs=("logprobs", "entropy"),
    named={"reference": "ref_model", "value": "value_model"},
    same_tokens=("reference", "value"),
    frozen_beside=2,
    trained_beside=1,
    value_model=True,
    kl="kl_coef",
    passes="num_ppo_epochs",
)
