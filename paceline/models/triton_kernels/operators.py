"""The kernels as torch operators ``paceline::…``: Triton on a device, ``reference`` on a CPU, only shapes on
meta tensors. They have no derivative: autograd functions call them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.models.triton_kernels import launch, reference

_LIBRARY = torch.library.Library("paceline", "FRAGMENT")  # type: ignore[no-untyped-call]


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """x · rstd · (offset + weight) over the last dim: (y like x, 1/rms [rows] in fp32)."""
    return torch.ops.paceline.rms_norm(x, weight, eps, offset)  # type: ignore[no-any-return]


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float, programs: int
) -> tuple[Tensor, Tensor]:
    """Return (d x like x, d weight in ``programs`` parts [programs, H] fp32, to be summed)."""
    return torch.ops.paceline.rms_norm_backward(grad, x, weight, rstd, offset, programs)  # type: ignore


def gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """act(gate) · up; act is SiLU, or with ``tanh`` GELU in its tanh form."""
    return torch.ops.paceline.gated(gate, up, tanh)  # type: ignore[no-any-return]


def gated_backward(gate: Tensor, up: Tensor, grad: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return (act(gate) · up, d gate); ``grad``, that of the former, becomes d up."""
    return torch.ops.paceline.gated_backward(gate, up, grad, tanh)  # type: ignore[no-any-return]


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, direction: float) -> tuple[Tensor, Tensor]:
    """query [T, heads, D], key [T, key heads, D], cos and sin [T, D] of equal halves -> rotated, contiguous;
    ``direction`` -1 rotates back.
    """
    return torch.ops.paceline.rotary(query, key, cos, sin, direction)  # type: ignore[no-any-return]


def nll_gradient(raw: Tensor, labels: Tensor, scale: float, softcap: float) -> tuple[Tensor, Tensor]:
    """raw [rows, V] -> (-log p(label) [rows] fp32, best column [rows]); ``raw`` becomes d nll / d raw.

    logit = softcap · tanh(scale · raw / softcap), or scale · raw for ``softcap`` 0.
    """
    return torch.ops.paceline.nll_gradient(raw, labels, scale, softcap)  # type: ignore[no-any-return]


def adamw_rounded(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    numbers: Sequence[float],
    keys: Sequence[int],
    first: int,
) -> None:
    """AdamW's step on bf16 weights, in place, rounded stochastically: see ``reference.adamw_rounded``."""
    torch.ops.paceline.adamw_rounded(weight, grad, mean, square, numbers, keys, first)


# The fourth of each row makes empty results on the meta device: what torch.compile traces shapes with
for _schema, _on_device, _on_cpu, _shapes in (
    (
        "rms_norm(Tensor x, Tensor weight, float eps, float offset) -> (Tensor, Tensor)",
        launch.rms_norm,
        reference.rms_norm,
        lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)),
    ),
    (
        "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, float offset, int programs)"
        " -> (Tensor, Tensor)",
        launch.rms_norm_backward,
        reference.rms_norm_backward,
        lambda grad, x, weight, rstd, offset, programs: (
            x.new_empty(x.shape),
            rstd.new_empty(programs, x.shape[-1]),
        ),
    ),
    (
        "gated(Tensor gate, Tensor up, bool tanh) -> Tensor",
        launch.gated,
        reference.gated,
        lambda gate, *_: gate.new_empty(gate.shape),
    ),
    (
        "gated_backward(Tensor gate, Tensor up, Tensor(a!) grad, bool tanh) -> (Tensor, Tensor)",
        launch.gated_backward,
        reference.gated_backward,
        lambda gate, *_: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)),
    ),
    (
        "rotary(Tensor query, Tensor key, Tensor cos, Tensor sin, float direction) -> (Tensor, Tensor)",
        launch.rotary,
        reference.rotary,
        lambda query, key, *_: (query.new_empty(query.shape), key.new_empty(key.shape)),
    ),
    (
        "nll_gradient(Tensor(a!) raw, Tensor labels, float scale, float softcap) -> (Tensor, Tensor)",
        launch.nll_gradient,
        reference.nll_gradient,
        lambda raw, labels, *_: (
            raw.new_empty(raw.shape[0], dtype=torch.float32),
            labels.new_empty(labels.shape),
        ),
    ),
    (
        "adamw_rounded(Tensor(a!) weight, Tensor grad, Tensor(b!) mean, Tensor(c!) square, float[] numbers,"
        " int[] keys, int first) -> ()",
        launch.adamw_rounded,
        reference.adamw_rounded,
        lambda *_: None,
    ),
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
    for _key, _function in (("CUDA", _on_device), ("CPU", _on_cpu), ("Meta", _shapes)):
        _LIBRARY.impl(_schema.partition("(")[0], _function, _key)  # type: ignore[no-untyped-call]
