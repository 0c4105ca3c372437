"""Recomputation of layers, whole or but for the outputs of chosen operators: the same bits, and the
bytes of the closed form.
"""

from __future__ import annotations

import pytest
import torch
from model_families import FAMILIES, build_family, make_batch
from torch import Tensor

from paceline.models.role_module import RoleModule
from paceline.protocols.roles import Output

NLL = frozenset({Output.NLL})
WAYS: list[tuple[str, ...]] = [(), ("attention",), ("matmul",), ("attention", "matmul")]
LENGTHS = (50, 60, 40)


def _held(module: RoleModule) -> tuple[int, Tensor]:
    """The bytes that a forward leaves allocated for its backward, and the loss."""
    batch = make_batch(LENGTHS)
    module(batch, NLL)  # what is allocated once
    with torch.profiler.profile(profile_memory=True) as profile:
        loss = module(batch, NLL)["nll"].sum()
    return sum(event.self_cpu_memory_usage for event in profile.events()), loss


def _gradients(module: RoleModule) -> Tensor:
    grads = [p.grad.flatten() for _, p in module.plain_named_parameters() if p.grad is not None]
    return torch.cat(grads)


FAST = [("llama", torch.bfloat16), ("gpt_oss", torch.float32)]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, marks=() if (family, dtype) in FAST else pytest.mark.full)
        for family in ("llama", "gemma2", "gpt2", "gpt_oss", "bloom")
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_no_bit_changes_and_the_bytes_lie_between_all_and_none(family: str, dtype: torch.dtype) -> None:
    plain = build_family(family, compute_dtype=dtype)
    none, expected = _held(plain)
    expected.backward()
    held = {}
    for keep in WAYS:
        module = build_family(family, compute_dtype=dtype, recompute=True, recompute_keeps=keep)
        held[keep], loss = _held(module)
        loss.backward()
        assert torch.equal(loss, expected), keep
        assert torch.equal(_gradients(module), _gradients(plain)), keep
    assert held[()] < held["matmul",] < none
    assert held[()] <= held["attention",] <= held["attention", "matmul"]


def test_the_bytes_are_those_of_the_closed_form() -> None:
    """``plan.cost.peak`` counts attention's output and log-sums; q, k, v and the output projection, gate and
    up.
    """
    config, tokens = FAMILIES["llama"], sum(LENGTHS)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    keys = config["num_key_value_heads"] * (width // heads)
    found = {keep: _held(build_family("llama", recompute=True, recompute_keeps=keep))[0] for keep in WAYS}
    per_layer = {
        ("attention",): 4 * (width + heads),
        ("matmul",): 4 * (2 * width + 2 * keys + 2 * config["intermediate_size"]),
    }
    for keep, count in per_layer.items():
        assert found[keep] - found[()] == count * tokens * config["num_hidden_layers"], keep
