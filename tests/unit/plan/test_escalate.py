"""``auto``: the guide's rule, and what memory makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.plan.catalogue import cluster_of
from paceline.plan.hardware import Hardware, probe_hardware
from paceline.plan.known import model_shape
from paceline.plan.predict.escalate import escalate
from paceline.plan.strategy import Chosen

BY_RULE = Chosen("zero2", "auto: from 1B to 7B: ZeRO-2", by_size=True)


def config(**training: Any) -> dict[str, Any]:
    return {
        "training": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "gradient_checkpointing": True,
            **training,
        },
        "data": {"max_length": 2048},
    }


def escalated(
    model: str, hardware: Hardware, ranks: int, adapter: dict[str, Any] | None = None, **training: Any
) -> Chosen:
    return escalate(BY_RULE, config(**training), model_shape(model), adapter, hardware, ranks)


def test_what_fits_stays_and_says_by_how_much() -> None:
    found = escalated("llama-3.2-3b", cluster_of("8xH100").hardware(), 8)
    assert found.strategy == "zero2" and "zero2 fits" in found.reason and "of 79" in found.reason


def test_what_does_not_fit_is_followed_by_the_next() -> None:
    found = escalated("llama-2-7b", cluster_of("8x4090").hardware(), 8)
    assert found.strategy == "zero3"
    assert "zero2 does not fit" in found.reason and "of 24" in found.reason and "zero3 fits" in found.reason


def test_where_nothing_fits_the_last_is_kept_and_help_is_named() -> None:
    found = escalated("llama-3-70b", cluster_of("8x4090").hardware(), 8, gradient_checkpointing=False)
    assert found.strategy == "zero3" and "is kept" in found.reason and "gradient_checkpointing" in found.reason


def test_packed_adapters_do_not_reach_zero_three() -> None:
    adapter = {
        "r": 8,
        "target_modules": ["q_proj"],
        "modules_to_save": [],
        "bias": "none",
        "quantization": {"bits": 4, "double_quant": True},
    }
    assert escalated("llama-3-70b", cluster_of("8x4090").hardware(), 8, adapter).strategy == "zero2"


@pytest.mark.parametrize("model", ["llama-3-70b", "gpt2"])
def test_a_cpu_is_left_to_the_rule(model: str) -> None:
    assert escalated(model, probe_hardware({}, use_cpu=True), 2) is BY_RULE
