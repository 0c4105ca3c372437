"""``distributed_strategy: fastest``: a plan like any other, its layout found by the search, what was
passed over said.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.plan.cost.from_plan import planned_candidate, search_spec_of
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_models
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job, strategy_spec
from paceline.rules.planning import make_plan


def config_of(model: str = "llama-3-8b", **training: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"config": dict(known_models()[model].config), "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 4096},
            "training": {"distributed_strategy": "fastest", "gradient_accumulation_steps": 8, **training},
        }
    )


def plan_of(config: Config, hardware: str = "8xH100") -> Plan:
    cluster = cluster_of(hardware)
    return make_plan(
        Job(
            config,
            cluster.hardware(),
            world_size=cluster.cards,
            num_nodes=cluster.nodes,
            launcher="torchrun",
            run_dir="none",
        )
    )


def test_the_layout_is_written_into_the_plan_and_the_rows_of_a_step_stay() -> None:
    config = config_of(per_device_train_batch_size=2)
    plan = plan_of(config)
    assert plan.strategy not in ("fastest", "auto", "ddp")
    assert plan.batch.global_batch == 2 * 8 * 8
    assert plan.config.training.distributed_strategy != "fastest", (
        "the plan is whole: nothing is chosen again by a worker"
    )
    assert plan.config_digest == config.digest(), "ranks compare what the user wrote"
    assert "fastest of" in plan.strategy_reason


def test_what_was_passed_over_has_its_binding_constraint() -> None:
    said = {d.subject: d.reason for d in plan_of(config_of(per_device_train_batch_size=2)).decisions}
    assert "GiB of 79" in said["not ddp"] and "most of it" in said["not ddp"]
    assert any("not faster" in reason for subject, reason in said.items() if subject.startswith("not "))


def test_a_layout_is_chosen_by_the_seconds_of_answers_too_as_the_table_counts_them() -> None:
    """A sharded model writes them slowly: without them every layout of a small one was as fast."""
    rewards = [{"name": "length", "options": {"target": 9}}]
    options = {"rollout": {"num_generations": 8, "max_completion_length": 256, "rewards": rewards}}
    plan = plan_of(config_of(algorithm="grpo", per_device_train_batch_size=8, **options))
    ask = search_spec_of(plan, cluster_of("8xH100"))
    layout = planned_candidate(plan, ask) if ask else None
    assert layout is not None and layout.speed.generation > 0
    speed = layout.work.step_tokens / layout.step / plan.world_size
    assert f"{speed:,.0f} tokens/s a device" in plan.strategy_reason


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan_of(config_of()).digest() == plan_of(config_of()).digest()


def test_a_layout_that_is_named_beside_it_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(config_of(parallelism={"tp_size": 2}))
    assert "plan.fastest_chooses" in {d.code for d in caught.value.diagnostics}


def test_where_nothing_fits_every_strategy_says_why() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(config_of("llama-3-70b"), "RTX-2080Ti-11GB")
    found = caught.value.diagnostics[0]
    assert found.code == "plan.fastest_nothing" and "GiB of" in found.found


def test_what_the_config_rules_out_is_not_taken() -> None:
    plan = plan_of(config_of(torch_compile=True, per_device_train_batch_size=1), "8xB300")
    assert not strategy_spec(plan.strategy).not_compiled
