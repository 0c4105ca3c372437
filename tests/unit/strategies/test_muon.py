"""Muon: the library's own update on matrices, AdamW's on the rest, stacks of experts one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paceline.plan.cost.pieces import Piece
from paceline.plan.cost.states import piece_counters, piece_moments
from paceline.protocols.optimizer import OptimizerSpec
from paceline.strategies.muon import ORTHOGONAL, _orthogonal
from paceline.strategies.optimizer import build_optimizer

SHAPES = {
    "model.embed_tokens.weight": (11, 8),
    "model.layers.0.mlp.up_proj.weight": (24, 8),
    "model.layers.0.mlp.experts.down_proj": (3, 8, 16),
    "model.layers.0.mlp.experts.gate_up_proj_bias": (3, 16),
    "model.layers.0.conv1d.weight": (8, 1, 4),
    "model.layers.0.input_layernorm.weight": (8,),
    "lm_head.weight": (11, 8),
}
BY_MUON = ["model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.experts.down_proj"]


def named() -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(1)
    return [(n, nn.Parameter(torch.randn(s, generator=generator))) for n, s in SHAPES.items()]


def give_gradients(parameters: list[tuple[str, nn.Parameter]], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for _, parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("fn", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_each_parameter_takes_the_step_of_torchs_own_optimizer(fn: str, nesterov: bool) -> None:
    """Bit for bit over five steps; each expert as a matrix of its own."""
    args = {"adjust_lr_fn": fn, "nesterov": nesterov}
    spec = OptimizerSpec(name="muon", learning_rate=0.02, weight_decay=0.1, betas=(0.8, 0.95), args=args)
    ours, theirs = named(), named()
    optimizer = build_optimizer(spec, ours)
    separate = {
        name: [nn.Parameter(p.detach().clone()) for p in (parameter if parameter.ndim == 3 else [parameter])]
        for name, parameter in theirs
        if name in BY_MUON
    }
    rest = [(n, p) for n, p in theirs if n not in BY_MUON]
    muon = torch.optim.Muon(
        [p for ps in separate.values() for p in ps],
        lr=0.02,
        weight_decay=0.1,
        nesterov=nesterov,
        adjust_lr_fn=fn,
    )
    adamw = build_optimizer(
        OptimizerSpec(name="adamw_torch_fused", learning_rate=0.02, weight_decay=0.1, betas=(0.8, 0.95)), rest
    )
    for step in range(5):
        give_gradients(ours, step)
        for name, parameter in ours:
            assert parameter.grad is not None
            for i, clone in enumerate(separate.get(name, [])):
                clone.grad = (parameter.grad[i] if parameter.ndim == 3 else parameter.grad).clone()
            for other, clone in rest:
                if other == name:
                    clone.grad = parameter.grad.clone()
        optimizer.step()
        muon.step()
        adamw.step()
    for name, parameter in ours:
        expected = dict(rest).get(name)
        if expected is None:
            expected = torch.stack(list(separate[name])) if parameter.ndim == 3 else separate[name][0]
        assert torch.equal(parameter, expected), name


def test_what_muon_steps_and_what_it_keeps() -> None:
    parameters = named()
    optimizer = build_optimizer(OptimizerSpec(name="muon"), parameters)
    by_muon = {id(p) for g in optimizer.param_groups if g[ORTHOGONAL] for p in g["params"]}
    assert [n for n, p in parameters if id(p) in by_muon] == BY_MUON
    give_gradients(parameters, 0)
    optimizer.step()
    for name, parameter in parameters:
        kept = [v for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor)]
        piece = Piece(name, tuple(parameter.shape), True, True, 4)
        assert sum(v.nbytes for v in kept if v.ndim) == piece_moments(piece, OptimizerSpec(name="muon")), name
        assert sum(v.nbytes for v in kept if not v.ndim) == piece_counters(piece, OptimizerSpec(name="muon"))


def test_a_model_without_matrices_and_one_without_others() -> None:
    for some in (BY_MUON, ["lm_head.weight"]):
        parameters = [(n, p) for n, p in named() if n in some]
        before = [p.detach().clone() for _, p in parameters]
        optimizer = build_optimizer(OptimizerSpec(name="muon"), parameters)
        give_gradients(parameters, 0)
        optimizer.step()
        assert not any(torch.equal(b, p) for b, (_, p) in zip(before, parameters, strict=True))


def test_why_float32_is_the_same_on_every_mesh_to_a_percent_of_an_update_only() -> None:
    """Ranks add the parts of a gradient in another order: its last bit differs. Where that flips a digit of
    the momentum in bfloat16, the iterations, which enlarge the smallest singular values most, carry it to a
    hundredth of the update: as far as they are from the exact factor anyway. In float32 they do not.
    """
    torch.manual_seed(0)
    apart, exact = [], []
    for _ in range(40):
        gradient = torch.randn(96, 60)
        other = gradient * (1 + 6e-8 * torch.randn(96, 60))
        one, two = (_orthogonal(g, GROUP).float() for g in (gradient, other))
        apart.append(float((one - two).norm() / one.norm()))
        alone, beside = (in_float32(g) for g in (gradient, other))
        exact += [float((alone - beside).norm() / alone.norm())]
        assert float((one - alone).norm() / alone.norm()) < 0.02
    assert 0 < max(apart) < 0.02 and max(exact) < 1e-5


def in_float32(gradient: torch.Tensor) -> torch.Tensor:
    """``_zeropower_via_newtonschulz`` without the cast to bfloat16."""
    a, b, c = GROUP["ns_coefficients"]
    x = (gradient / gradient.norm()).T
    for _ in range(GROUP["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T


GROUP: dict[str, Any] = {"ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": 5}
