"""``Plan.engine`` of a plan that a worker makes by hand: what is left out has its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.plan.plan_json import from_json
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.strategy_options import DeepSpeedOptions, EngineOptions, FsdpOptions, PipelineOptions


def engine_of(given: Mapping[str, Any], strategy: str = "") -> EngineOptions:
    """FSDP's options (other strategies ask nothing of them), a pipeline's where stages are spoken of,
    DeepSpeed's of its strategies.
    """
    if strategy and strategy_spec(strategy).engine_casts:
        return from_json(DeepSpeedOptions, {"zero_stage": strategy_spec(strategy).zero_stage or 0, **given})
    if "fsdp" in given:
        each = 1 if given.get("schedule", "1f1b") in ("1f1b", "gpipe") else 2
        return from_json(PipelineOptions, {"stages_per_rank": each, **given})
    reshard = given.get("sharding", "full_shard") in ("full_shard", "hybrid_shard")
    return from_json(FsdpOptions, {"reshard_after_forward": reshard, **given})
