"""What each algorithm needs: the kind of rows it reads, and the models beside the one that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.plan.plan import Decision

ON_POLICY = frozenset({"ppo", "grpo"})
PAIRWISE = frozenset({"reward", "dpo"})
_KEY = "training.dpo"


def reads_pairs(algorithm: str) -> bool:
    """Whether rows are preference pairs: two documents that stay together."""
    return algorithm in PAIRWISE


def reads_prompts(algorithm: str) -> bool:
    """Whether rows are prompts that the model answers itself in training."""
    return algorithm in ON_POLICY


def reference_of(training: Mapping[str, Any], adapter: Mapping[str, Any] | None) -> tuple[str, tuple[Decision, ...]]:
    """``Plan.reference``: where log-probabilities of the reference come from, and why; empty where none are needed."""
    if training["algorithm"] == "grpo":
        return _of_policy(training.get("grpo") or {}, "training.grpo", adapter)
    if training["algorithm"] != "dpo":
        return "", ()
    options = training.get("dpo") or {}
    if options.get("reference_free"):
        return "", (Decision("reference", "none", f"{_KEY}.reference_free: every answer is equally likely"),)
    model = options.get("ref_model")
    named = f"{_KEY}.ref_model: {model}" if model else "the model that training starts from"
    if options.get("precompute_ref_log_probs"):
        reason = f"{named}, asked once before training and kept in the data cache; none is loaded in training"
        return "cached", (Decision("reference", "cached", reason),)
    if adapter is not None and not model and not adapter["start"] and not adapter["modules_to_save"]:
        reason = "the policy itself with its adapter switched off: no second model"
        return "adapter", (Decision("reference", "adapter off", reason),)
    reason = (
        f"{named}, frozen beside the policy; {_KEY}.precompute_ref_log_probs: true spares its memory and its forward"
    )
    return "live", (Decision("reference", "live", reason),)


def _of_policy(
    options: Mapping[str, Any], key: str, adapter: Mapping[str, Any] | None
) -> tuple[str, tuple[Decision, ...]]:
    """The reference that a KL holds the policy to."""
    if not options.get("beta"):
        return "", (Decision("reference", "none", f"{key}.beta is 0: nothing holds the policy to a reference"),)
    model = options.get("ref_model")
    if adapter is not None and not model and not adapter["start"] and not adapter["modules_to_save"]:
        return "adapter", (Decision("reference", "adapter off", "the policy itself with its adapter switched off"),)
    named = f"{key}.ref_model: {model}" if model else "the model that training starts from"
    return "live", (Decision("reference", "live", f"{named}, frozen beside the policy"),)
