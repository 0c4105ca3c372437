"""What a strategy's own spec says it cannot do is refused as for a built-in one, before the start."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from plan_cases import CPU, MACHINES, MODELS

from paceline.config.schema import Config
from paceline.launch.preflight.plan_job import is_single_process
from paceline.plan.strategies.spec import Job, StrategySpec, declared_spec
from paceline.rules.planning import try_plan


@dataclass(frozen=True)
class Limit:
    """``spec``: arguments of a spec, as source; ``job``: what it cannot go with; ``code``: what says so."""

    spec: str
    code: str
    job: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None
    dtype: str = "float32"
    machine: str = "cpu"


LIMITS = {
    "axes": Limit("axes=frozenset({'dp_replicate'})", "par.strategy", {"parallelism": {"tp_size": 2}}),
    "sections": Limit("sections=frozenset()", "back.strategy_vs_file", {"fsdp": "full_shard"}),
    "zero_stage": Limit(
        "sections=frozenset({'deepspeed'}), zero_stage=1",
        "back.strategy_vs_file",
        {"deepspeed": {"zero_optimization": {"stage": 2}}},
    ),
    "one_process": Limit("one_process=True", "back.one_process"),
    "multi_device": Limit("one_process=True, multi_device=True", "strategy.data_parallel"),
    "min_processes": Limit("min_processes=4", "back.fsdp_single"),
    "not_compiled": Limit("not_compiled='it has no graph'", "strategy.compile", {"torch_compile": True}),
    "float64": Limit("float64=False", "strategy.float64", dtype="float64"),
    "loss_scale": Limit(
        "loss_scale=False", "strategy.fp16_pipeline", {"mixed_precision": "fp16"}, machine="h100"
    ),
    "state_split": Limit("state_split=StateSplit.FLAT", "strategy.optimizer_split", {"optim": "muon"}),
    "quantised_base": Limit(
        "quantised_base=False", "plan.quantised_strategy", lora={"quantization_bit": 4}, machine="h100"
    ),
    "adapter_axes": Limit(
        "axes=frozenset({'tp'})", "plan.adapter_strategy", {"parallelism": {"tp_size": 2}}, lora={}
    ),
    "requires": Limit("requires=('a_package_of_nobody',)", "plan.deepspeed_missing"),
    "fp8": Limit("fp8=False", "prec.fp8", {"fp8": True, "mixed_precision": "bf16"}, machine="h100"),
    "bf16_masters": Limit(
        "bf16_masters=False",
        "prec.bf16_weights",
        {"optim": "adamw_bf16_rounding", "mixed_precision": "bf16"},
        machine="h100",
    ),
    "score_axes": Limit(
        "score_axes=frozenset()", "strategy.pairs", {"algorithm": "dpo", "parallelism": {"tp_size": 2}}
    ),
    "stages": Limit(
        "stages=True",
        "strategy.pipeline_recompute",
        {"gradient_checkpointing": True, "parallelism": {"pp_size": 2, "pp_schedule": "zbv"}},
    ),
    "whole_rows": Limit("whole_rows=False", "strategy.pairs", {"algorithm": "dpo"}),
}
#: What a spec says that limits no job: names, defaults, how it is predicted, simulated and stored.
NO_LIMIT = {
    *("name", "engine", "training_keys", "alone", "substitute", "sharding", "shards_weights"),
    *("whole_modules", "engine_casts", "needs_group", "gradient_buffers", "simulated", "not_simulated"),
    *("state_form", "implementation", "strategy_options"),
}


def test_every_field_of_a_spec_is_a_limit_here_or_none() -> None:
    assert {f.name for f in fields(StrategySpec)} == LIMITS.keys() | NO_LIMIT


def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, name: str, arguments: str) -> str:
    """The ``module:SPEC`` of a spec made of ``arguments``."""
    text = (
        "from paceline.config.registries.optimizers import StateSplit\n"
        "from paceline.plan.strategies.spec import StrategySpec\n"
        f"SPEC = StrategySpec({arguments}, implementation='nowhere:Class')\n"
    )
    (tmp_path / f"limit_{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"limit_{name}:SPEC"


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_limit_of_an_own_spec_is_refused(monkeypatch: Any, tmp_path: Any, name: str) -> None:
    limit = LIMITS[name]
    strategy = written(monkeypatch, tmp_path, name, limit.spec)
    config = Config.from_json(
        {
            "model": {"config": dict(MODELS["tiny_llama"]), "dtype": limit.dtype},
            "training": {"distributed_strategy": strategy, **limit.job},
            "lora": limit.lora,
        }
    )
    tried = try_plan(Job(config, CPU if limit.machine == "cpu" else MACHINES[limit.machine], world_size=2))
    assert limit.code in {d.code for d in (*tried.ruled, *tried.problems)}
    assert is_single_process(config) is ("one_process=True" in limit.spec)


def test_a_class_without_a_spec_declares_nothing(monkeypatch: Any, tmp_path: Any) -> None:
    (tmp_path / "bare_class.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert declared_spec("bare_class:Mine") is None and declared_spec("no_such_module:SPEC") is None
    assert declared_spec("auto") is None
