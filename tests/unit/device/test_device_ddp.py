"""DDP's reducer is C++ that writes memory of its own, unseen by an emulation: what it is given is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_steps import LLAMA, micro_batches, planned, prepared
from emulated_device import emulated
from torch.distributed.utils import _to_kwargs

from paceline.protocols.roles import Output, Role
from paceline.strategies import ddp


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_rank_wraps_its_own_device_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(ddp, "DistributedDataParallel", lambda root, **options: given.update(options) or root)
    monkeypatch.setattr(ddp, "same_states", lambda root: given.update(same=root))
    world = SimpleNamespace(world_size=2, device=torch.device(kind, 1 if kind == "cuda" else None))
    config, plan = planned(LLAMA, "bf16", (9, 0))
    strategy = ddp.DDP.__new__(ddp.DDP)
    strategy.world, strategy.ddp_options = world, plan.ddp_options  # type: ignore[assignment]
    root = torch.nn.Linear(2, 2)
    assert strategy.wrap(Role.POLICY, root) is root  # type: ignore[arg-type]
    assert given["same"] is root and given["init_sync"] is False
    assert given["device_ids"] == ([1] if kind == "cuda" else None)


def test_a_micro_batch_goes_through_ddps_forward_as_it_is() -> None:
    """DDP moves the arguments of a forward to its device by type: a ``Batch`` is none of those it knows."""
    [batch] = micro_batches(1, 0)
    with emulated() as machine:
        moved = batch.to(machine.device)
        required = frozenset({Output.NLL})
        machine.forget()
        args, kwargs = _to_kwargs((moved, required), {}, machine.device, False)
        assert args[0][0] is moved and args[0][1] is required and not kwargs[0]
        assert not machine.waits and not machine.copies


def test_every_trained_parameter_and_gradient_is_on_the_device_that_ddp_reduces() -> None:
    config, plan = planned(LLAMA, "bf16", (9, 0))
    with emulated() as machine:
        _, handles, _ = prepared(config, plan, machine.device)
        handle = handles[Role.POLICY]
        outputs = handle.root(micro_batches(1, 0)[0].to(machine.device), frozenset({Output.NLL}))
        outputs[Output.NLL.value].backward()
        for name, parameter in handle.root.plain_named_parameters():
            assert parameter.device == machine.device, name
            assert parameter.grad is not None and parameter.grad.device == machine.device, name
            assert parameter.grad.dtype == parameter.dtype == torch.float32, name
