"""``auto``: the guide's rule, what memory makes of it, and that it picks nothing that cannot start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.choose_strategy import CHAIN, size_rule
from paceline.plan.cost.advice import escalated
from paceline.plan.cost.search import SearchSpec, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.hardware.probe import Hardware, probe_hardware
from paceline.plan.model.model_catalogue import known_models
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

CPU = replace(probe_hardware({}, use_cpu=True), packages=None)


def auto(
    model: str, hardware: Hardware | str, ranks: int = 0, lora: dict[str, Any] | None = None, **training: Any
) -> Plan:
    cluster = cluster_of(hardware) if isinstance(hardware, str) else None
    config = Config.model_validate(
        {
            "model": {"config": known_models()[model].config, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 1024},
            "training": {
                "mixed_precision": "bf16",
                "per_device_train_batch_size": 1,
                "gradient_checkpointing": True,
                **training,
            },
            **({"lora": lora} if lora else {}),
        }
    )
    machine = cluster.hardware() if cluster else hardware
    assert isinstance(machine, Hardware)
    ranks, nodes = ranks or (cluster.cards if cluster else 1), cluster.nodes if cluster else 1
    return make_plan(
        Job(config, machine, world_size=ranks, num_nodes=nodes, launcher="torchrun", run_dir="none")
    )


def test_what_fits_stays_and_says_by_how_much() -> None:
    found = auto("llama-3.2-3b", "8xH100")
    assert (
        found.strategy == "zero2"
        and "zero2 fits" in found.strategy_reason
        and "of 79" in found.strategy_reason
    )


def test_what_does_not_fit_is_followed_by_the_next() -> None:
    found = auto("qwen3-4b", "8x4090")
    assert found.strategy == "zero3"
    for said in ("zero2 does not fit", "of 24", "zero3 fits"):
        assert said in found.strategy_reason


def test_what_cannot_start_is_passed_over_with_its_bytes() -> None:
    found = auto("llama-3-70b", "64xH100")
    assert found.strategy == "zero3" and "zero3 fits" in found.strategy_reason
    small = auto("llama-2-7b", "8x4090")  # its weights under ZeRO-2 are 25 GiB, a card has 23.64
    reason = small.strategy_reason
    assert small.strategy == "zero3" and "zero3 fits" in reason
    assert "zero2 cannot start" in reason and "25.10 GiB of 23.64 GiB" in reason


def test_where_nothing_fits_the_last_that_starts_is_kept_and_help_is_named() -> None:
    found = auto("llama-3-8b", "8x4090", gradient_checkpointing=False, per_device_train_batch_size=8)
    assert found.strategy == "fsdp" and "keeping fsdp" in found.strategy_reason
    help_named = ("fsdp + cpu fits", "gradient_checkpointing: true", "per_device_train_batch_size: 8")
    assert all(words in found.strategy_reason for words in help_named)


def test_where_nothing_can_start_the_plan_is_refused_with_the_bytes() -> None:
    with pytest.raises(ConfigError) as caught:
        auto("llama-3-70b", "8x4090")
    assert "GiB of 23.64 GiB of card" in caught.value.diagnostics[0].found


def test_what_one_strategy_refuses_another_may_take() -> None:
    """ZeRO-3 would cut packed weights; FSDP reads them in every process, and its host has room."""
    found = auto("llama-3-8b", "8xH100", lora={"r": 8, "quantization_bit": 4})
    assert found.strategy == "fsdp" and "zero3 cannot start: 4-bit weights" in found.strategy_reason


def test_without_deepspeed_no_stage_of_its_is_tried() -> None:
    bare = replace(cluster_of("8xH100").hardware(), packages=())
    found = auto("llama-3.2-3b", bare, 8)
    assert (
        found.strategy == "fsdp"
        and "DeepSpeed is not installed" in found.strategy_reason
        and "fits" in found.strategy_reason
    )


@pytest.mark.parametrize("packages", [(), ("deepspeed",)])
def test_what_needs_whole_models_is_refused_under_each_sharding_of_the_rule(
    packages: tuple[str, ...],
) -> None:
    bare = replace(cluster_of("8xH100").hardware(), packages=packages)
    with pytest.raises(ConfigError) as caught:
        auto("llama-3.2-3b", bare, 8, optim="adafactor")
    assert [d.code for d in caught.value.diagnostics] == ["strategy.adafactor"]


@pytest.mark.parametrize("model", ["gpt2", "qwen2.5-0.5b"])
def test_a_cpu_with_room_is_left_to_the_rule(model: str) -> None:
    assert auto(model, replace(CPU, host_memory_bytes=2**40), 2).strategy == "ddp"


def test_a_cpu_without_room_shares_more_out() -> None:
    """8 processes of 1.2 B in 36 GiB: under ZeRO-2 each holds 4.6 GiB of weights."""
    roomy = replace(CPU, host_memory_bytes=36 * 2**30, memory_bytes=36 * 2**30)
    found = auto("llama-3.2-1b", roomy, 8)
    assert found.strategy == "zero3" and "zero2 cannot start" in found.strategy_reason


def test_the_rule_is_one_for_a_config_and_for_a_model_s_page() -> None:
    for name in ("gpt2", "llama-3.2-3b", "llama-3-8b"):
        shape = shape_from_config(known_models()[name].config)
        rule, _ = size_rule(shape.num_parameters)
        ask = SearchSpec(shape, cluster_of("64xH100"), 2048)
        taken, steps = escalated(ask, search(ask))
        assert steps[0].endswith(rule) and taken is not None and taken.strategy in CHAIN
        assert auto(name, "64xH100").strategy_reason.startswith("auto: ")
    assert set(CHAIN) <= set(STRATEGIES.names())
