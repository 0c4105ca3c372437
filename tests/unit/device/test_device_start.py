"""Bytes on the device before step 1: a model never lies there wider than it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft.tuners.lora.bnb  # noqa: F401  # imported in the emulation, bitsandbytes fails
import pytest
import torch
from device_steps import LLAMA, planned
from emulated_device import emulated

from paceline.models.factory import HFModelFactory
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.strategies.registry import make_strategy

WIDE = {**LLAMA, "hidden_size": 64, "intermediate_size": 192}
LORA = {"r": 2, "target_modules": ["q_proj"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[str, int]:
    """A folder of bf16 weights, and its parameters."""
    hf = HFModelFactory(planned(WIDE, "no", (9, 0))[0].model)().hf.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    hf.save_pretrained(tmp_path)
    return str(tmp_path), hf.num_parameters()


def start(
    folder: str | None, kind: str = "cuda", frozen: bool = False, **sections: Any
) -> tuple[int, int, int]:
    """Peak bytes on the device, those that stay, and those of the trained parameters."""
    config, plan = planned(WIDE, "bf16", (9, 0), **sections)
    model = (
        config.model
        if folder is None
        else config.model.model_copy(update={"name_or_path": folder, "config": None})
    )
    with emulated((9, 0), kind) as machine:
        world = World(0, 0, 1, 1, machine.device, "none", None)
        factory = HFModelFactory(
            model,
            compute_dtype=torch.bfloat16,
            attention=plan.attention,
            device=world.device,
            adapter=plan.adapter,
            frozen=frozen,
        )
        optimizer = None if frozen else plan.optimizer
        handle = make_strategy("single", world, plan).prepare(Role.POLICY, factory, optimizer)
        trained = sum(p.nbytes for p in handle.root.parameters() if p.requires_grad)
        return machine.peak, machine.live, trained


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_a_base_under_adapters_comes_in_bf16(checkpoint: tuple[str, int], kind: str) -> None:
    folder, count = checkpoint
    for source in (folder, None):  # a checkpoint, and weights drawn from the seed
        peak, live, trained = start(source, kind, lora=LORA)
        assert 0 < trained < 0.05 * count * 4
        assert 2.0 * count < peak < 2.1 * count + 1.5 * trained, (peak / count, trained)
        assert peak < 1.05 * live


def test_a_frozen_model_comes_in_bf16(checkpoint: tuple[str, int]) -> None:
    folder, count = checkpoint
    peak, live, _ = start(folder, frozen=True)
    assert 2.0 * count < peak < 2.1 * count and peak < 1.05 * live


def test_full_training_holds_fp32_masters_and_their_copies(checkpoint: tuple[str, int]) -> None:
    folder, count = checkpoint
    peak, live, trained = start(folder)
    assert trained == 4 * count
    assert 6.0 * 0.99 * count < peak < 6.1 * count and peak < 1.05 * live
