"""ddp gives every rank rank 0's values, and writes what differs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paceline.strategies import ddp


def _model(seed: int) -> nn.Module:
    """Parameters and buffers of many kinds, a tie, and a view that is shorter than what it views."""
    torch.manual_seed(seed)
    module = nn.Module()
    module.weight = nn.Parameter(torch.randn(7, 5))
    module.tied = module.weight
    module.turned = nn.Parameter(torch.randn(6, 4).t())
    long = torch.randn(9)
    module.register_buffer("short", long[:3])
    module.register_buffer("long", long)
    module.register_buffer("eighth", torch.randn(8).to(torch.float8_e4m3fn))
    module.register_buffer("flag", torch.randn(3) > 0)
    module.register_buffer("count", torch.randint(0, 99, ()))
    module.register_buffer("none", torch.empty(0))
    module.register_buffer("odd", torch.tensor([float("nan"), -0.0 if seed else 0.0]))
    return module


def _bytes(module: nn.Module) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    return [t.detach().contiguous().view(-1).view(torch.uint8) for t in tensors]


def test_rank_0s_values_arrive_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "SENT_BYTES", 16)
    first, other, sent = _model(0), _model(1), []
    monkeypatch.setattr(ddp.dist, "broadcast", lambda tensor, _: sent.append(tensor.clone()))
    ddp.same_states(first)
    monkeypatch.setattr(ddp.dist, "broadcast", lambda tensor, _: tensor.copy_(sent.pop(0)))
    ddp.same_states(other)
    assert not sent
    assert all(torch.equal(a, b) for a, b in zip(_bytes(first), _bytes(other), strict=True))


def test_what_is_the_same_stays_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is written is this process's own."""
    save_file({"weight": torch.randn(1 << 20)}, tmp_path / "a.safetensors")
    module: Any = nn.Module()
    module.weight = nn.Parameter(load_file(tmp_path / "a.safetensors")["weight"], requires_grad=False)
    module.turned = nn.Parameter(module.weight.view(1024, 1024).t(), requires_grad=False)
    monkeypatch.setattr(ddp.dist, "broadcast", lambda *_: None)
    before = module.weight._version, module.turned._version
    ddp.same_states(module)
    assert (module.weight._version, module.turned._version) == before
