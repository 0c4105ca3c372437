"""What of a config can only be known by importing something, and so is tried in a process of its own before a start. No torch here."""

from __future__ import annotations

from paceline.config.schema import Config
from paceline.plan.adapter import ALL_LINEAR
from paceline.plan.families import FAMILY_SIZES
from paceline.plan.plan import Plan

REWARDS, STRATEGY, COMPILE, MODEL = "reward functions", "strategy class", "compile backend", "model class"
#: ``attn_implementation`` that every model class of Transformers has
_ATTENTION = ("auto", "paceline", "eager", "sdpa")


def things_to_try(config: Config, plan: Plan | None) -> dict[str, str]:
    """What is tried → for the sake of what (config values, as words). ``plan`` None: there is none yet, and less can be tried."""
    t, found = config.training, dict[str, str]()
    named = [reward.name for reward in (t.rollout.rewards if t.rollout else ()) if ":" in reward.name]
    if named:
        found[REWARDS] = ", ".join(named)
    if ":" in t.distributed_strategy:
        found[STRATEGY] = t.distributed_strategy
    options = [o for o in (t.torch_compile_backend, t.torch_compile_mode) if o not in (None, "inductor", "default")]
    if t.torch_compile and options:
        found[COMPILE] = ", ".join(map(str, options))
    reasons = list(_of_model(config, plan))
    if reasons and plan is not None:
        found[MODEL] = ", ".join(reasons)
    return found


def _of_model(config: Config, plan: Plan | None) -> list[str]:
    """Why the model's class is asked: what it must have or be able to do beyond what every decoder is."""
    m, lora, reasons = config.model, config.lora, []
    if m.attn_implementation not in _ATTENTION:
        reasons.append(f"attention {m.attn_implementation}")
    if lora is not None and (tuple(lora.target_modules) != (ALL_LINEAR,) or lora.modules_to_save):
        reasons.append("adapter targets")
    if plan is None:
        return reasons
    sharded = plan.engine.get("fsdp", plan.engine)
    if (sharded.get("wrap") or {}).get("classes"):
        reasons.append(f"wrap classes {', '.join(sharded['wrap']['classes'])}")
    if plan.shape is not None and plan.shape.model_type not in FAMILY_SIZES:  # of those a table tells it
        reasons.append(f"family {plan.shape.model_type}")
    return reasons
