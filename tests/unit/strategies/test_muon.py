"""Muon: the library's own update on matrices, AdamW's on the rest, stacks of experts one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paceline.plan.plan import OptimizerSpec
from paceline.plan.workload.local_tensors import LocalTensor, piece_counters, piece_moments
from paceline.strategies.optimizers.build import build_optimizer
from paceline.strategies.optimizers.muon import ORTHOGONAL, MuonWithAdamW, orthogonal_update

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
        piece = LocalTensor(name, tuple(parameter.shape), True, True, 4)
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


def test_iterations_in_float32_are_the_same_on_every_mesh() -> None:
    """Ranks add the parts of a gradient in another order: its last bit differs. In bfloat16 that flips a
    digit of the momentum, which the iterations, that enlarge the smallest singular values most, carry to a
    hundredth of the update: as far as they are from the exact factor anyway.
    """
    torch.manual_seed(0)
    apart, exact = [], []
    for _ in range(40):
        gradient = torch.randn(96, 60)
        other = gradient * (1 + 6e-8 * torch.randn(96, 60))
        one, two = (orthogonal_update(g.bfloat16(), GROUP).float() for g in (gradient, other))
        apart.append(float((one - two).norm() / one.norm()))
        alone, beside = (orthogonal_update(g, GROUP) for g in (gradient, other))
        assert torch.allclose(alone, by_singular_values(gradient), atol=1e-5)
        exact += [float((alone - beside).norm() / alone.norm())]
        assert float((one - alone).norm() / alone.norm()) < 0.02
    assert 0 < max(apart) < 0.02 and max(exact) < 1e-5


def by_singular_values(gradient: torch.Tensor) -> torch.Tensor:
    """The iterations act on each singular value by itself: a·s + b·s³ + c·s⁵, five times, in float64."""
    left, values, right = torch.linalg.svd(gradient.double(), full_matrices=False)
    values = values / values.norm()
    a, b, c = GROUP["ns_coefficients"]
    for _ in range(GROUP["ns_steps"]):
        values = a * values + b * values**3 + c * values**5
    return (left @ torch.diag(values) @ right).float()


def test_the_dtype_of_the_iterations_is_the_arguments_or_the_weights_if_wider() -> None:
    for dtype, words in ((torch.float32, "float32"), (torch.float64, "float32"), (torch.float32, "bfloat16")):
        parameter = nn.Parameter(torch.randn(6, 4, dtype=dtype))
        group = {"params": [parameter], ORTHOGONAL: True}
        optimizer = MuonWithAdamW([group], lr=1.0, ns_dtype=words, adjust_lr_fn="original")
        before, parameter.grad = parameter.detach().clone(), torch.randn(6, 4, dtype=dtype)
        optimizer.step()
        step = before - parameter.detach()
        rounded = torch.equal(step.bfloat16().to(dtype), step)
        wide = by_singular_values(parameter.grad).to(dtype) * 1.5**0.5
        assert not rounded and float((step - wide).abs().max()) < (0.05 if words == "bfloat16" else 1e-5)
        assert (float((step - wide).abs().max()) > 1e-4) == (words == "bfloat16")


GROUP: dict[str, Any] = {"ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": 5}
