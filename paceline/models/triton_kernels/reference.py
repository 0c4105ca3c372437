"""The kernels' computations in torch operations. CPUs use them (tests and simulated devices), and tests
compare the kernels with them. Arithmetic in fp32, or fp64 for fp64 input, rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_TWO_ROOTS = 1.5957691216057308  # 2·√(2/π)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """x [.., H], weight [H] -> (y like x, 1/rms [rows] in fp32)."""
    wide = _wide(x).reshape(-1, x.shape[-1])
    rstd = (wide.square().mean(-1) + eps).rsqrt()
    y = wide * rstd[:, None] * (_wide(weight) + offset)
    return y.to(x.dtype).view(x.shape), rstd


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float, programs: int
) -> tuple[Tensor, Tensor]:
    """Return (d x like x, d weight as [programs, H] sums of rows)."""
    rows, g = (_wide(t).reshape(-1, x.shape[-1]) for t in (x, grad))
    normed = rows * rstd[:, None]
    partial = rstd.new_zeros(programs, x.shape[-1])
    partial[0] = (g * normed).sum(0)
    g = g * (_wide(weight) + offset)
    grad_x = (g - normed * (g * normed).mean(-1, keepdim=True)) * rstd[:, None]
    return grad_x.to(x.dtype).view(x.shape), partial


def gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """act(gate) · up; act is SiLU, or with ``tanh`` GELU in its tanh form, rounded before the product as
    by the models' own modules.
    """
    g = _wide(gate)
    return ((g * _activation(g, tanh)[0]).to(gate.dtype) * up).to(gate.dtype)


def gated_backward(gate: Tensor, up: Tensor, grad: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return (act(gate) · up, d gate); ``grad``, that of the former, becomes d up."""
    g, u, d = (_wide(t) for t in (gate, up, grad))
    share, moved = _activation(g, tanh)
    active = g * share
    grad_gate = d * u * share * (1.0 + moved * (1.0 - share))
    grad.copy_(d * active)
    return (active.to(gate.dtype) * up).to(gate.dtype), grad_gate.to(gate.dtype)


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, direction: float) -> tuple[Tensor, Tensor]:
    """query [T, heads, D], key [T, key heads, D], cos and sin [T, D] of equal halves -> both rotated."""
    half = query.shape[-1] // 2
    c, s = _wide(cos)[:, None, :half], _wide(sin)[:, None, :half] * direction

    def turned(x: Tensor) -> Tensor:
        a, b = _wide(x)[..., :half], _wide(x)[..., half:]
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

    return turned(query), turned(key)


def nll_gradient(raw: Tensor, labels: Tensor, scale: float, softcap: float) -> tuple[Tensor, Tensor]:
    """raw [rows, V], labels [rows] -> (-log p(label) [rows] fp32, best column [rows]); ``raw`` becomes
    d nll / d raw. ``softcap`` 0: none.
    """
    logits = _wide(raw) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    sums, best = torch.logsumexp(logits, -1, keepdim=True), logits.argmax(-1)
    nll = (sums - logits.gather(1, labels[:, None])).squeeze(1)
    derivative = (logits - sums).exp()
    derivative.scatter_add_(1, labels[:, None], derivative.new_full((), -1.0).expand(labels.shape[0], 1))
    if softcap:
        derivative = derivative * (1.0 - (logits / softcap).square())
    raw.copy_(derivative * scale)
    return nll, best


def adamw_rounded(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    numbers: Sequence[float],
    keys: Sequence[int],
    first: int,
) -> None:
    """AdamW's step on ``weight`` (bf16, contiguous) and its moments (fp32), in place; the new weight is
    rounded stochastically. ``numbers``: decay factor, rate over 1 - beta1^t, 1/sqrt(1 - beta2^t), betas, eps.
    """
    decay, rate, root, beta1, beta2, eps = numbers
    g = _wide(grad)
    mean.add_(g - mean, alpha=1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    exact = _wide(weight) * decay - rate * mean / (square.sqrt() * root + eps)
    weight.copy_(rounded(exact, keys, first))


def rounded(exact: Tensor, keys: Sequence[int], first: int) -> Tensor:
    """fp32 -> one of the two bf16 numbers next to each element, by noise of ``keys`` and its place. A bf16
    number is an fp32 number whose lower 16 bits are 0. Adding 16 bits of noise carries into the upper bits
    with the probability that the lower bits give.
    """
    noise = rounding_noise(exact.numel(), keys, first, exact.device).view(exact.shape)
    bits = exact.contiguous().view(torch.int32)
    return ((bits + noise) & -0x10000).view(torch.float32).bfloat16()


def rounding_noise(count: int, keys: Sequence[int], first: int, device: torch.device) -> Tensor:
    """int32 [count] from 0 to 65535: MurmurHash3's finaliser of place and key, and half of it again."""
    low = (first & 0xFFFFFFFF) - ((first & 0x80000000) << 1)
    x = torch.arange(count, dtype=torch.int32, device=device) + low
    x = x ^ keys[0]
    x = (x ^ (x >> 16 & 0xFFFF)) * -2048144789
    x = (x ^ (x >> 13 & 0x7FFFF)) * -1028477387
    x = (x ^ (x >> 16 & 0xFFFF)) + keys[1]
    x = (x ^ (x >> 15 & 0x1FFFF)) * -2048144789
    return (x ^ (x >> 16 & 0xFFFF)) & 0xFFFF


def _activation(value: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """act(v) = v · σ(u): return σ(u) and v · du/dv."""
    if not tanh:
        return value.sigmoid(), value
    inner = _TWO_ROOTS * value * (1.0 + 0.044715 * value.square())
    return inner.sigmoid(), _TWO_ROOTS * value * (1.0 + 3 * 0.044715 * value.square())


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
