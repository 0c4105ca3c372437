"""Parts of a config that only an import can check, tried in a child process before launch. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.attention import PACKABLE, family_packs
from paceline.plan.features.peft_settings import ALL_LINEAR
from paceline.plan.model.files.unusual_config import unusual
from paceline.plan.model.read_config import model_config
from paceline.plan.plan import Plan

REWARDS, STRATEGY, COMPILE, MODEL = "reward functions", "strategy class", "compile backend", "model class"
ALGORITHM = "algorithm class"
CALLBACKS, TRACKERS, METRICS, EXPORTERS = "callbacks", "trackers", "metrics", "exporters"
DATASETS, TOKENIZER = "data sets", "tokenizer"  # see ``training.questions``
#: ``attn_implementation`` that every model class supports
_ATTENTION = ("auto", "paceline", "eager", "sdpa")


def things_to_try(config: Config, plan: Plan | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what to try → reason (config values as text); ``plan`` is None if there is none yet."""
    t, found = config.training, dict[str, str]()
    named = [reward.name for reward in (t.rollout.rewards if t.rollout else ()) if ":" in reward.name]
    if named:
        found[REWARDS] = ", ".join(named)
    if ":" in t.distributed_strategy:
        found[STRATEGY] = t.distributed_strategy
    if algorithm_spec(t.algorithm).own:
        found[ALGORITHM] = t.algorithm
    if t.callbacks:
        found[CALLBACKS] = ", ".join(one.name for one in t.callbacks)
    if trackers := [name for name in t.report_to if ":" in name]:
        found[TRACKERS] = ", ".join(trackers)
    if own := [name for name in t.eval_metrics if ":" in name and t.eval_generate]:
        found[METRICS] = ", ".join(own)
    if own := [name for name in t.exporters if ":" in name]:
        found[EXPORTERS] = ", ".join(own)
    options = [
        o for o in (t.torch_compile_backend, t.torch_compile_mode) if o not in (None, "inductor", "default")
    ]
    if t.torch_compile and options:
        found[COMPILE] = ", ".join(map(str, options))
    reasons = _of_model(config, plan, environ)
    if reasons and plan is not None:
        found[MODEL] = ", ".join(reasons)
    return found


def _of_model(config: Config, plan: Plan | None, environ: Mapping[str, str]) -> list[str]:
    """Return why the model class must be tried: requirements beyond those that every decoder meets."""
    m, lora, reasons = config.model, config.lora, []
    if m.attn_implementation not in _ATTENTION:
        reasons.append(f"attention {m.attn_implementation}")
    if lora is not None and (
        tuple(lora.target_modules) != (ALL_LINEAR,)
        or lora.modules_to_save
        or lora.adapter_name_or_path
        or lora.init_lora_weights
    ):
        reasons.append("adapter targets")
    if m.trust_remote_code:
        reasons.append("its own code")
    if odd := _odd_values(config, environ):
        reasons.append(f"values of its config: {', '.join(odd)}")
    if plan is None:
        return reasons
    # What depends on the plan: wrap classes, family, attention, quantization, tensor parallelism.
    sharded, family = plan.engine.sharded, plan.shape.family if plan.shape else None
    if sharded is not None and sharded.wrap.classes:
        reasons.append(f"wrap classes {', '.join(sharded.wrap.classes)}")
    if plan.shape is not None and plan.shape.family.needs_trial:
        reasons.append(f"family {plan.shape.model_type}")
    if m.attn_implementation not in PACKABLE or not family_packs(plan.shape):
        conditions = {
            "attention paceline": m.attn_implementation == "paceline",
            "context parallelism": plan.mesh.cp > 1,
            "sequence parallelism": sharded is not None and sharded.sequence_parallel,
            "rollouts": algorithm_spec(plan.algorithm).on_policy,
        }
        reasons += (f"{what} on padded rows" for what, is_so in conditions.items() if is_so)
    if plan.adapter is not None and plan.adapter.quantization and family is not None and family.conv1d:
        reasons.append("4-bit layers")
    if plan.mesh.tp > 1 and _says(config, environ, "base_model_tp_plan"):
        reasons.append("a tensor-parallel plan of its own")
    return reasons


def _says(config: Config, environ: Mapping[str, str], key: str) -> bool:
    """Whether the model's ``config.json`` has ``key``; False if it is not on this machine."""
    try:
        return key in model_config(config.model, environ)
    except ConfigError:  # reported where the shape is read
        return False


def _odd_values(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return keys of the model's ``config.json`` with unusual values; empty if it is not on this machine."""
    try:
        return unusual(model_config(config.model, environ), written=bool(config.model.config))
    except ConfigError:  # reported where the shape is read
        return ()
