"""A tensor that says it lies on an accelerator and keeps its numbers in host memory."""

from __future__ import annotations

from typing import Any

import torch
from emulated_machine import Machine
from torch import Tensor

aten = torch.ops.aten


class DeviceTensor(Tensor):
    """``numbers``: the values, a plain tensor. To Python this lies on ``machine.device``; to C++, which would
    need a real device's guard, on the CPU.
    """

    numbers: Tensor
    machine: Machine
    stream: Any  # on which it was made; None: the default
    place: int  # in that stream's order
    recorded: bool  # its memory is kept until the default stream is done with it
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor, machine: Machine, requires_grad: bool = False) -> DeviceTensor:
        machine.refuse_float64(numbers.dtype)
        made: DeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device("cpu"),
            requires_grad=requires_grad,
        )
        made.numbers, made.machine = numbers, machine
        made.stream, made.recorded = machine.stream, False
        made.place = 0 if made.stream is None else made.stream.enqueue()
        machine.hold(numbers)
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from emulated_rules import run

        return run(func, args, kwargs or {})

    # --- where it says it is

    device = property(lambda self: self.machine.device)  # type: ignore[assignment]
    is_cuda = property(lambda self: self.machine.kind == "cuda")  # type: ignore[assignment]
    is_xpu = property(lambda self: self.machine.kind == "xpu")  # type: ignore[assignment]
    is_mps = property(lambda self: self.machine.kind == "mps")  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return self.machine.index

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def is_pinned(self, *_: Any, **__: Any) -> bool:
        return False

    def record_stream(self, *_: Any) -> None:
        self.recorded = True

    def refuse_early_use(self, func: Any) -> None:
        """Raise where kernels of the default stream may read this before it is there, or after its memory
        was handed out again.
        """
        if self.stream is None or self.machine.stream is self.stream:
            return
        if self.place > self.stream.waited:
            raise RuntimeError(f"{func} reads a tensor whose copy on another stream is not waited for")
        if not self.recorded:
            raise RuntimeError(f"{func} reads a tensor of another stream without record_stream")

    def _set_data(self, value: Tensor) -> None:
        if not isinstance(value, DeviceTensor):
            raise TypeError("the emulated device cannot give a tensor's place to one of the host")
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.numbers = value.numbers
        self.machine.hold(value.numbers)

    data = property(lambda self: Tensor.data.__get__(self), _set_data)  # type: ignore

    # --- ways out of the device

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same tensor where nothing changes; else a copy, on the host if that was asked for."""
        copy, memory_format = kwargs.pop("copy", False), kwargs.pop("memory_format", None)
        if args and isinstance(args[0], Tensor):
            device, dtype, rest = args[0].device, args[0].dtype, args[1:]
            non_blocking = kwargs.get("non_blocking", rest[0] if rest else False)
        else:
            if len(args) == 4:
                *args, copy = args  # type: ignore[assignment]
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore
        here = device is None or device.type == self.machine.kind
        if here and dtype in (None, self.dtype) and not copy:
            return self
        options: dict[str, Any] = {"dtype": dtype or self.dtype, "memory_format": memory_format}
        if here:
            return aten._to_copy(self, **options)  # type: ignore[no-any-return]
        self.machine.to_host = True
        try:
            options["non_blocking"] = bool(non_blocking)
            return aten._to_copy(self, device=torch.device("cpu"), **options)  # type: ignore[no-any-return]
        finally:
            self.machine.to_host = False

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        self.machine.wait("tolist")
        return self.numbers.detach().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to"
            " host memory first."
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.numbers!r}, device='{self.device}')"


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` as an operand of a product of ``dtype``, whose sums are ``x``'s."""
    return x.to(dtype).to(x.dtype)
