"""Every launch of a row kernel by shape and dtype, and its compilation for a card that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from paceline.models.triton_kernels import launch

#: capability -> bytes of shared memory that one block may have (CUDA's programming guide, table of compute
#: capabilities: maximum amount of shared memory per thread block)
SHARED = {
    70: 96 << 10,
    75: 64 << 10,
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
}
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: what Triton compiles it by."""

    kernel: JITFunction[Any]
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int
    aligned: tuple[int, ...]

    def compiled(self, capability: int) -> Any:
        """Compile to a card's machine code."""
        source = ASTSource(
            self.kernel,
            dict(self.signature),
            dict(self.constants),
            {(place,): [["tt.divisibility", 16]] for place in self.aligned},
        )
        return triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": self.warps}
        )


def launched(call: Callable[[], object]) -> list[Launch]:
    """The launches that ``call`` makes, none of which is carried out."""
    found: list[Launch] = []

    def note(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        warps = kwargs.pop("num_warps", 4)
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        assert set(given) == set(kernel.arg_names), given.keys()
        assert all(0 < n < 2**31 for n in grid)
        constants = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
        signature = {name: "constexpr" if name in constants else _type(given[name]) for name in given}
        aligned = [
            place
            for place, name in enumerate(kernel.arg_names)
            if isinstance(x := given[name], Tensor) or (isinstance(x, int) and x % 16 == 0)
            if name not in constants
        ]
        found.append(
            Launch(kernel, tuple(signature.items()), tuple(constants.items()), warps, tuple(aligned))
        )

    with mock.patch.object(JITFunction, "run", note):
        call()
    return found


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Each kernel at the shapes of models from half a billion parameters to a hundred, by name."""

    def made(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    for width in (80, 128, 2304, 4096, launch.WIDEST):
        x, weight, rstd = made(7, width), made(width, dtype=torch.float32), made(7, dtype=torch.float32)
        for gain in (weight, weight.to(dtype))[width % 2 :]:
            yield f"rms_norm {width}", launched(lambda x=x, w=gain: launch.rms_norm(x, w, 1e-6, 1.0))[0]
            [one] = launched(lambda x=x, w=gain, r=rstd: launch.rms_norm_backward(x, x, w, r, 1.0, 4))
            yield f"rms_norm_backward {width}", one
    x = made(5, 14336)
    for tanh in (False, True):
        yield f"gated {tanh}", launched(lambda t=tanh: launch.gated(x, x, t))[0]
        yield f"gated_backward {tanh}", launched(lambda t=tanh: launch.gated_backward(x, x, x, t))[0]
    for size in (80, 128, 256):
        q, k, cos = made(3, 32, size), made(3, 8, size), made(3, size)
        yield f"rotary {size}", launched(lambda q=q, k=k, c=cos: launch.rotary(q, k, c, c, -1.0))[0]
    for columns in (1000, 128256):
        raw, labels = made(3, columns), made(3, dtype=torch.int64)
        for softcap in (0.0, 30.0):
            [one] = launched(lambda r=raw, y=labels, c=softcap: launch.nll_gradient(r, y, 1.0, c))
            yield f"nll_gradient {columns} {softcap}", one
    weight, moment = made(4096, dtype=torch.bfloat16), made(4096, dtype=torch.float32)
    for first in (3, 2**33):
        [one] = launched(
            lambda f=first: launch.adamw_rounded(weight, x[0, :4096], moment, moment, [0.5] * 6, [-5, 7], f)
        )
        yield f"adamw_rounded {first}", one
