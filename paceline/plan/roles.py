"""What each algorithm needs: the kind of rows it reads, and the models beside the one that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.plan.plan import Decision
from paceline.plan.shape import ModelShape, shape_of

ON_POLICY = frozenset({"ppo", "grpo"})
PAIRWISE = frozenset({"reward", "dpo"})
_KEY = "training.dpo"
_KL = {"grpo": ("beta", 0.0), "ppo": ("kl_coef", 0.05)}  # the key that weighs the KL, and its default


def reads_pairs(algorithm: str) -> bool:
    """Whether rows are preference pairs: two documents that stay together."""
    return algorithm in PAIRWISE


def reads_prompts(algorithm: str) -> bool:
    """Whether rows are prompts that the model answers itself in training."""
    return algorithm in ON_POLICY


def group_size(training: Mapping[str, Any]) -> int:
    """Answers to each prompt."""
    asked = (training.get("rollout") or {}).get("num_generations")
    return int(asked or (8 if training["algorithm"] == "grpo" else 1))


def model_named(training: Mapping[str, Any], role: str) -> str | None:
    """The folder or hub name of a role's own weights; None where it starts from those that training starts from."""
    own = training.get(training["algorithm"]) or {}
    name = own.get({"reference": "ref_model", "value": "value_model"}.get(role, ""))
    if name is None and role in ("value", "reward") and reads_prompts(training["algorithm"]):
        judges = [r for r in (training.get("rollout") or {}).get("rewards") or () if r["name"] == "model"]
        name = judges[0]["options"].get("model") if judges else None
    return None if name is None else str(name)


def named_shapes(config: Any, environ: Mapping[str, str] | None = None) -> dict[str, ModelShape | None]:
    """The shapes of the models that the algorithm's roles name (``make_plan``'s ``others``); None for one that is not here yet. Raises ConfigError
    for a folder that is missing."""
    training = config.to_json()["training"]
    found: dict[str, ModelShape | None] = {}
    for role in ("reference", "value", "reward"):
        name = model_named(training, role)
        if name is not None and name not in found:
            found[name] = shape_of(config.model.model_copy(update={"name_or_path": name, "config": None, "revision": None}), environ)  # fmt: skip
    return found


def other_models(
    training: Mapping[str, Any], adapter: Mapping[str, Any] | None
) -> tuple[str, dict[str, dict[str, Any]], tuple[Decision, ...]]:
    """(``Plan.reference``, ``Plan.models`` without their shapes, what there is to say)."""
    reference, said = reference_of(training, adapter)
    found: dict[str, dict[str, Any]] = {}
    if reference == "live":
        found["reference"] = {"trained": False, "model": model_named(training, "reference")}
    if not reads_prompts(training["algorithm"]):
        return reference, found, said
    if training["algorithm"] == "ppo":
        name = model_named(training, "value")
        found["value"] = {"trained": True, "model": name}
        start = name or "the model that training starts from, with a fresh head"
        own = ", with an adapter of its own" if adapter is not None else ""
        said += (Decision("value model", "trained", f"{start}{own}"),)
    judge = model_named(training, "reward")
    if judge is not None:
        found["reward"] = {"trained": False, "model": judge}
        said += (Decision("reward model", "frozen", judge),)
    return reference, found, said


def reference_of(training: Mapping[str, Any], adapter: Mapping[str, Any] | None) -> tuple[str, tuple[Decision, ...]]:
    """``Plan.reference``: where log-probabilities of the reference come from, and why; empty where none are needed."""
    if training["algorithm"] in _KL:
        key, default = _KL[training["algorithm"]]
        options = training.get(training["algorithm"]) or {}
        return _of_policy({key: default, **options}, key, f"training.{training['algorithm']}", adapter)
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
    options: Mapping[str, Any], weight: str, key: str, adapter: Mapping[str, Any] | None
) -> tuple[str, tuple[Decision, ...]]:
    """The reference that a KL holds the policy to."""
    if not options[weight]:
        return "", (Decision("reference", "none", f"{key}.{weight} is 0: nothing holds the policy to a reference"),)
    model = options.get("ref_model")
    if adapter is not None and not model and not adapter["start"] and not adapter["modules_to_save"]:
        return "adapter", (Decision("reference", "adapter off", "the policy itself with its adapter switched off"),)
    named = f"{key}.ref_model: {model}" if model else "the model that training starts from"
    return "live", (Decision("reference", "live", f"{named}, frozen beside the policy"),)
