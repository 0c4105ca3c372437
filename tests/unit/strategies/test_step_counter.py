"""Where an optimizer's counter of steps lies after it was set: where torch's kernel of a step reads it."""

from __future__ import annotations

import pytest
import torch

from paceline.strategies.deepspeed.partition_views import PartitionSlice
from paceline.strategies.replicated_state import counts_on_device


@pytest.mark.parametrize("owned", [True, False], ids=["in a group", "outside the groups, as ZeRO-3's"])
@pytest.mark.parametrize(
    ("options", "beside"), [({"fused": True}, True), ({"capturable": True}, True), ({}, False)]
)
def test_a_fused_or_capturable_step_reads_it_beside_the_weights(
    options: dict[str, bool], beside: bool, owned: bool
) -> None:
    """A resume under ZeRO left it on the host, and the first step on a card ended in an error."""
    flat = torch.nn.Parameter(torch.zeros(6, device="meta"))
    other = torch.nn.Parameter(torch.zeros(1, device="meta"))
    optimizer = torch.optim.AdamW([flat if owned else other], lr=1e-3)
    for group in optimizer.param_groups:  # torch refuses the options on meta
        group.update(options)
    assert counts_on_device(optimizer, flat) == beside
    part = PartitionSlice(other, (6,), 0, 6, flat, 0, optimizer)
    part.set_step(torch.tensor(7))
    found = optimizer.state[flat]["step"]
    assert (found.device.type, found.dtype, found.shape) == ("meta" if beside else "cpu", torch.float32, ())
