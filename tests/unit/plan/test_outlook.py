"""Beyond a step: time to finish, disk, host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.config.schema import Config
from paceline.plan.cost.from_plan import of_length, search_spec_of
from paceline.plan.cost.report import forecast, outlook, text
from paceline.plan.cost.search import Candidate, SearchSpec, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_models, model_shape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.workload.step_spec import AdapterSize
from paceline.rules.planning import make_plan

ASK = SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"))


def taken(ask: SearchSpec, strategy: str) -> Candidate:
    return next(c for c in search(ask) if c.strategy == strategy)


def test_tokens_give_steps_and_steps_give_time() -> None:
    ask = replace(ASK, tokens=1e9)
    layout = taken(ask, "fsdp")
    told = outlook(layout, ask)
    assert told.steps == -(-(10**9) // (128 * 4096)) and told.seconds == pytest.approx(
        told.steps * layout.step
    )
    assert outlook(layout, replace(ASK, steps=7)).steps == 7
    assert outlook(layout, ASK).seconds == 0 and "steps" not in outlook(layout, ASK).text()


def test_a_checkpoint_holds_weights_and_moments_of_what_is_trained() -> None:
    kept = replace(ASK, kept=3)
    whole = outlook(taken(kept, "fsdp"), kept)
    assert whole.checkpoint_bytes == 12 * 8030261248 and whole.disk_bytes == 3 * whole.checkpoint_bytes
    lora = replace(ASK, adapter=AdapterSize(1_000_000))
    assert outlook(taken(lora, "ddp"), lora).checkpoint_bytes == 12_000_000


def test_what_is_offloaded_is_counted_in_memory_or_on_disk() -> None:
    states = 12 * 8030261248
    memory = outlook(taken(ASK, "zero2 + cpu"), ASK)
    assert memory.host_bytes_a_node == pytest.approx(states) and memory.nvme_bytes_a_node == 0
    on_disk = replace(ASK, nvme=frozenset({"optimizer"}))
    disk = outlook(taken(on_disk, "zero3 + cpu"), on_disk)
    assert disk.nvme_bytes_a_node == pytest.approx(states) and disk.host_bytes_a_node == pytest.approx(
        6 * 8030261248
    )
    assert outlook(taken(ASK, "fsdp"), ASK).host_bytes_a_node == 0


def test_the_table_and_the_json_have_it() -> None:
    told = forecast("llama-3-8b", replace(ASK, tokens=1e9, kept=2))
    assert "1,908 steps in" in text(told) and "of disk × 2" in text(told)
    assert told.to_json()["outlook"]["steps"] == 1908


def plan_of(**training: object) -> Plan:
    config = Config.model_validate(
        {
            "model": {"config": dict(known_models()["llama-3-8b"].config), "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 4096},
            "training": {"distributed_strategy": "zero3", "gradient_accumulation_steps": 2, **training},
        }
    )
    return make_plan(Job(config, ASK.cluster.hardware(), world_size=8, launcher="torchrun", run_dir="none"))


def test_prepared_data_gives_steps_and_the_time_of_the_tokens_that_are_there() -> None:
    plan = plan_of(num_train_epochs=3, per_device_train_batch_size=1)
    ask = search_spec_of(plan, ASK.cluster)
    assert ask is not None and ask.rows == 16
    measured = of_length(ask, plan, (1000, 1000 * 512))
    layout = taken(measured, "fsdp")
    told = outlook(layout, measured)
    assert told.steps == 3 * 63, "the last step of an epoch is filled"
    assert told.seconds == pytest.approx(told.steps * layout.step / 8), "an eighth of every row is there"
    assert "1,000 rows per epoch, 512 tokens each on average" in told.text()
    dropped = plan_of(num_train_epochs=3, per_device_train_batch_size=1, dataloader_drop_last=True)
    assert of_length(ask, dropped, (1000, 512_000)).steps == 3 * 62


def test_without_prepared_data_what_is_assumed_is_said() -> None:
    for training, said in (({"max_steps": 7}, "7 steps in"), ({}, "paceline prepare")):
        plan = plan_of(**training)
        asked = search_spec_of(plan, ASK.cluster)
        assert asked is not None
        told = outlook(taken(asked, "fsdp"), of_length(asked, plan, None))
        assert said in told.text() and ("rows are assumed to be full, 4,096 tokens" in told.text()) is bool(
            training
        )


def test_what_the_config_spares_is_not_predicted() -> None:
    """KTO without a KL asks nothing of answers to other prompts; a student answers a share of the prompts."""
    for loss, forwards in (("kto", 3), ("apo_zero_unpaired", 1)):
        plan = plan_of(algorithm="kto", kto={"loss_type": loss}, distributed_strategy="fsdp")
        ask = search_spec_of(plan, ASK.cluster)
        assert ask is not None and taken(ask, "fsdp").work.forwards_beside == forwards
    times = []
    for lmbda in (1.0, 0.25):
        taught = {"teacher_model": "org/teacher", "lmbda": lmbda, "max_completion_length": 64}
        plan = plan_of(algorithm="distillation", distillation=taught, distributed_strategy="fsdp")
        ask = search_spec_of(plan, ASK.cluster)
        assert ask is not None
        times.append(taken(ask, "fsdp").speed.generation)
    assert 0 < times[1] == pytest.approx(times[0] / 4)
