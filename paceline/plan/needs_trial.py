"""Parts of a config that only an import can check, tried in a child process before launch. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.attention import PACKABLE, family_packs
from paceline.plan.model.files.unusual_config import unusual
from paceline.plan.model.parameter_list import ALL_LINEAR
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
    t = config.training
    compiled = [
        o for o in (t.torch_compile_backend, t.torch_compile_mode) if o not in (None, "inductor", "default")
    ]
    parts = {
        REWARDS: [reward.name for reward in (t.rollout.rewards if t.rollout else ()) if ":" in reward.name],
        STRATEGY: [t.distributed_strategy] * (":" in t.distributed_strategy),
        ALGORITHM: [t.algorithm] * algorithm_spec(t.algorithm).own,
        CALLBACKS: [callback.name for callback in t.callbacks],
        TRACKERS: [name for name in t.report_to if ":" in name],
        METRICS: [name for name in t.eval_metrics if ":" in name and t.eval_generate],
        EXPORTERS: [name for name in t.exporters if ":" in name],
        COMPILE: [str(option) for option in compiled] if t.torch_compile else [],
        MODEL: _of_model(config, plan, environ) if plan is not None else [],
    }
    return {part: ", ".join(names) for part, names in parts.items() if names}


def _of_model(config: Config, plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Return why the model class must be tried: requirements beyond those that every decoder meets."""
    m, lora, shape, sharded = config.model, config.lora, plan.shape, plan.engine.sharded
    by_peft = lora is not None and (
        tuple(lora.target_modules) != (ALL_LINEAR,)
        or lora.modules_to_save
        or lora.adapter_name_or_path
        or lora.init_lora_weights
    )
    written = _config_keys(config, environ)
    odd = unusual(written, written=bool(m.config)) if written else ()
    classes = sharded.wrap.classes if sharded is not None else ()
    padded = m.attn_implementation not in PACKABLE or not family_packs(shape)
    packs = plan.adapter is not None and plan.adapter.quantization is not None
    reasons = {
        f"attention {m.attn_implementation}": m.attn_implementation not in _ATTENTION,
        "adapter targets": by_peft,
        "its own code": m.trust_remote_code,
        f"values of its config: {', '.join(odd)}": odd,
        f"wrap classes {', '.join(classes)}": classes,
        f"family {shape.model_type if shape else ''}": shape is not None and shape.family.needs_trial,
        "attention paceline, on padded rows": padded and m.attn_implementation == "paceline",
        "context parallelism on padded rows": padded and plan.mesh.cp > 1,
        "sequence parallelism on padded rows": padded and sharded is not None and sharded.sequence_parallel,
        "rollouts on padded rows": padded and algorithm_spec(plan.algorithm).on_policy,
        "4-bit layers": packs and shape is not None and shape.family.conv1d,
        "a tensor-parallel plan of its own": plan.mesh.tp > 1 and "base_model_tp_plan" in written,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _config_keys(config: Config, environ: Mapping[str, str]) -> Mapping[str, Json]:
    """Return the model's ``config.json``; empty if it is not on this machine."""
    try:
        return model_config(config.model, environ)
    except ConfigError:  # reported where the shape is read
        return {}
