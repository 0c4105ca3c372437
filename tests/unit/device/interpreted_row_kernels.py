"""The row kernels in Triton's interpreter, against fp64 and against what the models' own modules compute.

A program of its own, as Triton reads TRITON_INTERPRET=1 when it is imported: prints a line a case,
``name error error_of_the_other``, both the largest distance to fp64 over the largest value.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.triton_kernels import launch, reference

Outputs = tuple[Tensor, ...]
Case = tuple[str, Outputs, Outputs, Outputs]  # name, kernel's, the model's own, fp64's


def main() -> None:
    """Print all cases of the seed in argv."""
    seed = int(sys.argv[1])
    chance, _ = random.Random(seed), torch.manual_seed(seed)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, ours, theirs, exact in cases(chance, dtype):
            for place, (a, b, e) in enumerate(zip(ours, theirs, exact, strict=True)):
                errors = (_error(x, e) for x in (a, b))
                print(f"{str(dtype)[6:]}/{name}/{place}", *errors)


def cases(chance: random.Random, dtype: torch.dtype) -> Iterator[Case]:
    """Every kernel at odd shapes of chance."""
    for offset, width, most in (
        (0.0, chance.randint(3, 300), 8),
        (1.0, chance.randint(3, 300), 8),
        (0.0, 64, 40),  # more rows than one program takes
        (1.0, 2500, 3),
    ):
        rows = chance.randint(most // 2, most)
        yield from _norms(rows, width, offset, dtype, same=False)
        yield from _norms(rows, width, offset, dtype, same=True)
    for tanh in (False, True):
        yield from _gated(chance.randint(1, 9), chance.randint(1, 700), dtype, tanh)
    for size in (chance.randint(1, 60) * 2, 128):
        yield from _rotary(chance.randint(1, 9), chance.randint(1, 20), chance.randint(1, 9), size, dtype)
    for softcap in (0.0, 30.0):
        for columns in (chance.randint(2, 900), 9000):
            yield from _nll(chance.randint(1, 6), columns, dtype, chance.choice((1.0, 0.25)), softcap)
    for first in (0, chance.randint(1, 9), 2**31 + chance.randint(1, 9)):
        yield _rounded(chance.randint(1, 5000), dtype, first)


def _norms(rows: int, width: int, offset: float, dtype: torch.dtype, *, same: bool) -> Iterator[Case]:
    x, grad = (_random(2, rows, width, dtype=dtype) for _ in range(2))
    weight = (torch.randn(width) * 0.2 + 1.0 - offset).to(dtype if same else torch.float32)
    eps = 1e-6
    y, rstd = launch.rms_norm(x, weight, eps, offset)
    programs = launch.norm_programs(2 * rows, width, 2)
    grad_x, partial = launch.rms_norm_backward(grad, x, weight, rstd, offset, programs)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        """Transformers' LlamaRMSNorm and Gemma2RMSNorm."""
        wide = x.double() if x.dtype == torch.float64 else x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return (normed * (1.0 + weight)).to(x.dtype) if offset else weight * normed.to(x.dtype)

    found = (y, grad_x, partial.sum(0))
    name = f"rms_norm {offset} {rows}x{width} {same}"
    yield name, found, _derived(norm, grad, x, weight), _derived(norm, grad, x.double(), weight.double())


def _gated(rows: int, width: int, dtype: torch.dtype, tanh: bool) -> Iterator[Case]:
    gate, up, grad = (_random(rows, width, dtype=dtype) for _ in range(3))
    ahead = launch.gated(gate, up, tanh)
    became = grad.clone()
    acted, grad_gate = launch.gated_backward(gate, up, became, tanh)
    assert torch.equal(ahead, acted)

    def mlp(gate: Tensor, up: Tensor) -> Tensor:
        return (F.gelu(gate, approximate="tanh") if tanh else F.silu(gate)) * up

    found = (acted, grad_gate, became)
    wide = (x.double() for x in (gate, up))
    yield f"gated {tanh} {rows}x{width}", found, _derived(mlp, grad, gate, up), _derived(mlp, grad, *wide)


def _rotary(tokens: int, heads: int, key_heads: int, size: int, dtype: torch.dtype) -> Iterator[Case]:
    query = _random(heads, tokens, size, dtype=dtype).transpose(0, 1)  # strided
    key = _random(tokens, key_heads, size, dtype=dtype)
    angles = torch.rand(tokens, size // 2).repeat(1, 2) * 6.0
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(x: Tensor) -> Tensor:
        """Transformers' apply_rotary_pos_emb."""
        a, b = x.chunk(2, -1)
        return x * cos[:, None].to(x.dtype) + torch.cat((-b, a), -1) * sin[:, None].to(x.dtype)

    found = launch.rotary(query, key, cos, sin, 1.0)
    name = f"rotary {tokens}x{heads},{key_heads}x{size}"
    yield name, found, (turn(query), turn(key)), (turn(query.double()), turn(key.double()))
    back = launch.rotary(*found, cos, sin, -1.0)
    exact = reference.rotary(*(x.double() for x in found), cos.double(), sin.double(), -1.0)
    yield f"{name} back", back, tuple(x.to(dtype) for x in exact), exact


def _nll(rows: int, columns: int, dtype: torch.dtype, scale: float, softcap: float) -> Iterator[Case]:
    raw = _random(rows, columns, dtype=dtype) * 8
    labels = torch.randint(columns, (rows,))
    became = raw.clone()
    nll, best = launch.nll_gradient(became, labels, scale, softcap)

    def loss(raw: Tensor) -> Tensor:
        logits = (raw if raw.dtype == torch.float64 else raw.float()) * scale
        logits = softcap * torch.tanh(logits / softcap) if softcap else logits
        return F.cross_entropy(logits, labels, reduction="none")

    logits = raw.double() * scale
    chosen = (softcap * torch.tanh(logits / softcap) if softcap else logits).gather(1, best[:, None])
    assert float((logits.amax(1) if not softcap else chosen[:, 0]).sub(chosen[:, 0]).abs().max()) == 0.0
    name = f"nll_gradient {rows}x{columns} {scale} {softcap}"
    ones = torch.ones(rows)
    yield name, (nll, became), _derived(loss, ones, raw), _derived(loss, ones.double(), raw.double())


def _rounded(size: int, dtype: torch.dtype, first: int) -> Case:
    """Moments against fp64's; the weights are the reference's but where fp32's last digit decides."""
    numbers, keys = [0.999, 2e-2, 1.3, 0.9, 0.95, 1e-8], [-123456789, 987654321]
    weight, grad = torch.randn(size).bfloat16(), _random(size, dtype=dtype)
    moments = [torch.randn(size), torch.rand(size)]
    ours, theirs = ([weight.clone(), *(m.clone() for m in moments)] for _ in range(2))
    exact = [m.double() for m in moments]
    launch.adamw_rounded(ours[0], grad, *ours[1:], numbers, keys, first)
    reference.adamw_rounded(theirs[0], grad, *theirs[1:], numbers, keys, first)
    assert int((ours[0] != theirs[0]).sum()) <= 2 + size // 1000, "weights"
    assert not torch.equal(ours[0], weight)
    wide = grad.double()
    exact = [exact[0] + 0.1 * (wide - exact[0]), exact[1] * 0.95 + 0.05 * wide * wide]
    return f"adamw_rounded {size} {first}", tuple(ours[1:]), tuple(theirs[1:]), tuple(exact)


def _derived(function: object, grad: Tensor, *inputs: Tensor) -> Outputs:
    """The output and the gradients of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)  # type: ignore[operator]
    return (out, *torch.autograd.grad(out, leaves, grad.to(out.dtype)))


def _random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


def _error(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape, (found.shape, exact.shape)
    return float(
        (found.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max().clamp_min(1e-30)
    )


if __name__ == "__main__":
    main()
