"""Micro-batches reach the device beside the kernels of the one before, and no host waits for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from device_steps import LLAMA, micro_batches, planned, prepared
from emulated_device import emulated

from paceline.runtime.device.device import CopiedToHost
from paceline.strategies.window.runner import CopiedAhead, make_runner

FIELDS = {"sft": 5, "reward": 6, "dpo": 6}  # ids, labels, positions, documents, places of labels; margins
MAPS = {"sft": 1, "reward": 4, "dpo": 9}  # boundaries; maps of shared prompts, also for the reference


def window(algorithm: str, count: int, pin: bool, kind: str = "cuda") -> tuple[Any, list[float]]:
    """A window after a first one: the machine that counted it, and both losses."""
    config, plan = planned(LLAMA, "bf16", (9, 0), training={"algorithm": algorithm})
    with emulated((9, 0), kind) as machine:
        strategy, handles, objective = prepared(config, plan, machine.device)
        losses = []
        for step in range(2):
            made = micro_batches(count, step, paired=algorithm != "sft")
            batches = [batch.pinned() if pin else batch for batch in made]
            machine.forget()
            result = make_runner(strategy).train_window(
                handles, batches, objective, lr=1e-3, max_grad_norm=1.0, generator_seed=lambda j: j
            )
            losses.append(sum(result.losses.values()))
        return machine, losses


@pytest.mark.parametrize("algorithm", FIELDS)
def test_a_pinned_micro_batch_is_copied_beside_the_kernels(algorithm: str) -> None:
    few, more = (window(algorithm, count, pin=True)[0] for count in (1, 4))
    assert not few.pageable and not more.pageable
    added = sum(more.copies.values()) - sum(few.copies.values())
    beside = sum(more.beside.values()) - sum(few.beside.values())
    assert beside == 3 * FIELDS[algorithm] and added - beside <= 3 * MAPS[algorithm], (added, beside)
    assert few.waits == more.waits  # none of a micro-batch


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_losses_do_not_depend_on_pinning(kind: str) -> None:
    pinned, plain = (window("sft", 3, pin, kind) for pin in (True, False))
    assert pinned[1] == plain[1]
    assert sum(plain[0].pageable.values()) > 3 * FIELDS["sft"]  # the counter sees them


def test_the_next_copy_is_enqueued_before_the_present_batch_is_given() -> None:
    order: list[str] = []
    with emulated() as machine:
        batches = [b.pinned() for b in micro_batches(3, 0)]

        def move(batch: Any) -> Any:
            order.append(f"copy {next(i for i, one in enumerate(batches) if one is batch)}")
            return batch.to(machine.device)

        for number, batch in enumerate(CopiedAhead(machine.device).each(batches, move)):
            order.append(f"compute {number}")
            assert (batch.input_ids + 0).cpu().equal(batches[number].input_ids)
        assert Counter(machine.pageable) == Counter()
    assert order == ["copy 0", "copy 1", "compute 0", "copy 2", "compute 1", "compute 2"]


def test_kernels_that_would_overtake_a_copy_are_caught_here() -> None:
    """What a GPU does not report: reads before the wait, and of memory that may be handed out again."""
    with emulated() as machine:
        [batch] = (b.pinned() for b in micro_batches(1, 0))
        stream = torch.Stream(machine.device)
        with stream:
            moved = batch.to(machine.device)
            copied = stream.record_event()
            late = batch.to(machine.device)
        with pytest.raises(RuntimeError, match="is not waited for"):
            moved.input_ids + 0
        torch.accelerator.current_stream().wait_event(copied)
        with pytest.raises(RuntimeError, match="without record_stream"):
            moved.input_ids + 0
        for one in (moved, late):
            one.input_ids.record_stream(stream)
        assert (moved.input_ids + 0).cpu().equal(batch.input_ids)
        with pytest.raises(RuntimeError, match="is not waited for"):
            late.input_ids + 0


def test_a_processor_has_nothing_to_copy() -> None:
    batches = micro_batches(2, 0)
    assert list(CopiedAhead(torch.device("cpu")).each(batches, lambda b: b)) == batches
    assert list(CopiedAhead(torch.device("cpu")).each([], lambda b: b)) == []


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_numbers_are_copied_to_the_host_without_a_wait(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read after the event behind their copy; a device that copies nothing beside its kernels waits
    once a tensor.
    """
    order: list[str] = []
    with emulated((9, 0), kind) as machine:
        streams = torch.accelerator.current_stream
        events: list[Any] = []

        def recorded(device: torch.device) -> Any:
            stream = streams(device)
            make = stream.record_event

            def record(event: Any) -> Any:
                order.append("record")
                made = make(event)
                made.synchronize = lambda: order.append("wait for the copy")
                made.query = lambda: bool(events)
                return made

            stream.record_event = record
            return stream

        monkeypatch.setattr(torch.accelerator, "current_stream", recorded)
        values = [torch.arange(3, device=machine.device), torch.ones(2, device=machine.device)]
        machine.forget()
        start = streams(machine.device).record_event(torch.Event(machine.device, enable_timing=True))
        copied = CopiedToHost(values)
        waits = sum(machine.waits.values())
        assert (waits, copied.under_way, order) == (
            (2, False, []) if kind == "mps" else (0, True, ["record"])
        )
        assert copied.arrives(0.01) == (kind == "mps")
        events.append("done")
        assert copied.arrives(0.01)
        assert [t.tolist() for t in copied.read()] == [[0, 1, 2], [1.0, 1.0]]
        assert all(t.device.type == "cpu" for t in copied.read()) and sum(machine.waits.values()) == waits
        seconds = copied.seconds_since(start)
        assert seconds is None if kind == "mps" else seconds is not None and seconds >= 0
        assert copied.seconds_since(None) is None
    assert order == ([] if kind == "mps" else ["record", "wait for the copy", "wait for the copy"])


def test_a_processors_numbers_are_their_own_copies() -> None:
    values = [torch.ones(2), torch.arange(3)]
    copied = CopiedToHost(values)
    assert not copied.under_way and copied.arrives(0)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(copied.read(), values, strict=True))
