"""Beyond a step: time to finish, disk, host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.plan.catalogue import cluster_of
from paceline.plan.known import model_shape
from paceline.plan.predict.outlook import outlook
from paceline.plan.predict.report import forecast, text
from paceline.plan.predict.search import Ask, Candidate, search
from paceline.plan.predict.work import Adapter

ASK = Ask(model_shape("llama-3-8b"), cluster_of("8xH100"))


def taken(ask: Ask, strategy: str) -> Candidate:
    return next(c for c in search(ask) if c.strategy == strategy)


def test_tokens_give_steps_and_steps_give_time() -> None:
    ask = replace(ASK, tokens=1e9)
    layout = taken(ask, "fsdp")
    told = outlook(layout, ask)
    assert told.steps == -(-(10**9) // (128 * 4096)) and told.seconds == pytest.approx(told.steps * layout.step)
    assert outlook(layout, replace(ASK, steps=7)).steps == 7
    assert outlook(layout, ASK).seconds == 0 and "steps" not in outlook(layout, ASK).text()


def test_a_checkpoint_holds_weights_and_moments_of_what_is_trained() -> None:
    kept = replace(ASK, kept=3)
    whole = outlook(taken(kept, "fsdp"), kept)
    assert whole.checkpoint_bytes == 12 * 8030261248 and whole.disk_bytes == 3 * whole.checkpoint_bytes
    lora = replace(ASK, adapter=Adapter(1_000_000))
    assert outlook(taken(lora, "ddp"), lora).checkpoint_bytes == 12_000_000


def test_what_is_offloaded_is_counted_in_memory_or_on_disk() -> None:
    states = 12 * 8030261248
    memory = outlook(taken(ASK, "zero2 + cpu"), ASK)
    assert memory.host_bytes_a_node == pytest.approx(states) and memory.nvme_bytes_a_node == 0
    on_disk = replace(ASK, nvme=frozenset({"optimizer"}))
    disk = outlook(taken(on_disk, "zero3 + cpu"), on_disk)
    assert disk.nvme_bytes_a_node == pytest.approx(states) and disk.host_bytes_a_node == pytest.approx(6 * 8030261248)
    assert outlook(taken(ASK, "fsdp"), ASK).host_bytes_a_node == 0


def test_the_table_and_the_json_have_it() -> None:
    told = forecast("llama-3-8b", replace(ASK, tokens=1e9, kept=2))
    assert "1,908 steps in" in text(told) and "of disk × 2" in text(told)
    assert told.to_json()["outlook"]["steps"] == 1908
