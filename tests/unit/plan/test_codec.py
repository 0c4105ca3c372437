"""Options of every engine to ``plan.json`` and back; what has its default and may be left out is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.plan.plan_json import from_json, to_json
from paceline.plan.strategy_options import (
    NO_OPTIONS,
    DeepSpeedOptions,
    EngineOptions,
    FsdpOptions,
    OwnOptions,
    PipelineOptions,
    ThreadOptions,
    Wrap,
    options_from_json,
)

FSDP = FsdpOptions(
    "hybrid_shard", wrap=Wrap("transformer", ("Block",)), cpu_offload=True, gather_for_generation=False
)


@pytest.mark.parametrize(
    "options",
    [
        NO_OPTIONS,
        ThreadOptions(3),
        FSDP,
        FsdpOptions(),
        PipelineOptions("zbv", 2, FSDP),
        DeepSpeedOptions(3, config={"zero_optimization": {"stage": 3}}, offload_param="nvme"),
        OwnOptions({"mine": [1, 2]}),
    ],
)
def test_options_come_back_as_they_went(options: EngineOptions) -> None:
    assert options_from_json(json.loads(json.dumps(options.to_json()))) == options


def test_a_field_that_may_be_left_out_is_there_when_it_says_something() -> None:
    assert FSDP.to_json()["gather_for_generation"] is False
    assert {"gather_for_generation", "whole_gradient_bytes"} & FsdpOptions().to_json().keys() == set()


def test_a_field_that_nobody_has_is_refused() -> None:
    data: dict[str, Any] = {**to_json(ThreadOptions(2)), "more": 1}
    with pytest.raises(TypeError, match="more"):
        from_json(ThreadOptions, data)
