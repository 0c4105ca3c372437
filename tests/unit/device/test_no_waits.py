"""A micro-batch that waits for the device raises: on an emulated one, and on a real one by torch's mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from device_steps import LLAMA, Trained, micro_batches, planned, run_windows, train
from emulated_device import emulated
from real_device import STANDS_FOR_CARD, card, card_capability
from torch import Tensor

from paceline.strategies.window.weights import WindowLosses

Read = Callable[[Tensor], object]
#: what a CPU does without a wait, and a device with one
READS: dict[str, Read] = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: bool(x.sum() > 0),
    "list": lambda x: x.detach().flatten().tolist(),
    "mask": lambda x: x[x > 0],
    "places": lambda x: (x > 0).nonzero(),
    "to the host": lambda x: x.detach().cpu(),
    "made of numbers": lambda x: torch.tensor([1.0], device=x.device),
    "of pageable memory": lambda x: torch.ones(3).to(x.device),
    "host indices": lambda x: x.flatten()[torch.zeros(1, dtype=torch.int64)],
    "synchronize": lambda x: x.device.type == "cpu" or torch.accelerator.synchronize(),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Read], None]:
    """Plants a read of a micro-batch's outputs into its loss."""

    def plant(read: Read) -> None:
        add = WindowLosses.add

        def reading(losses: WindowLosses, role: Any, outputs: Any, batch: Any) -> Tensor:
            for value in outputs.values():
                read(value)
            return add(losses, role, outputs, batch)

        monkeypatch.setattr(WindowLosses, "add", reading)

    return plant


@pytest.mark.parametrize("name", READS)
def test_a_wait_planted_in_a_micro_batch_is_found(name: str, planted: Callable[[Read], None]) -> None:
    planted(READS[name])
    assert train("cpu").losses
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        train("cuda")


def on_a_card() -> Trained:
    """As ``make gpu-check`` trains; the emulated driver takes the place of the real one."""
    config, plan = planned(LLAMA, "bf16", STANDS_FOR_CARD)
    with emulated(), card() as machine:
        return run_windows(config, plan, machine, 2, partial(micro_batches, 2))


def test_a_real_card_is_watched_by_torchs_mode(planted: Callable[[Read], None]) -> None:
    trained = on_a_card()
    assert trained.losses == train("cuda", "bf16").losses
    assert not trained.waits
    planted(READS["item"])
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        on_a_card()


def test_a_real_card_runs_each_case_once_at_its_own_capability() -> None:
    with emulated((8, 6)):
        assert card_capability("cuda", "bf16", STANDS_FOR_CARD) == (8, 6)
        assert card_capability("cpu", "fp16", STANDS_FOR_CARD) == (8, 6)
        for other in (("cuda", "bf16", (8, 0)), ("mps", "bf16", STANDS_FOR_CARD)):
            with pytest.raises(pytest.skip.Exception):
                card_capability(*other)
    with emulated((7, 5)), pytest.raises(pytest.skip.Exception):
        card_capability("cuda", "bf16", STANDS_FOR_CARD)
