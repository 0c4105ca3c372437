"""An accelerator for tests on a CPU build of torch: tensors say that they lie there and hold real numbers.

Every branch of a program for that device is taken and computes. Mixing host and device raises as CUDA does,
``.numpy()`` raises, a weight that FSDP2 has freed turns to NaN, kernels exist by ``capability``; waits of the
host, copies, kernels and bytes are counted. All happens in order. Not emulated: C++ that writes
memory of its own (DDP's reducer), and no gradient that crosses from the device to the host. Of streams only
``torch.Stream`` is known: a tensor made on one is refused elsewhere before a wait and ``record_stream``.

    with emulated(capability=(7, 5)) as machine:
        ...
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import emulated_flex
import emulated_sdpa
import torch
import torch.nn.functional as F
from emulated_graph import capturing, graph_class
from emulated_machine import Machine
from emulated_rules import Emulation, run
from emulated_tensor import DeviceTensor
from torch import Tensor, nn
from torch.utils._device import _device_constructors

from paceline.models.attention import flex_attention, kernel_choice
from paceline.plan.hardware.device_kinds import KINDS, NPU

_PINNED = "_emulated_pinned"


def register(kind: str) -> None:
    """What importing ``torch_npu`` does: torch knows the device by this name, for the rest of the process."""
    module = types.ModuleType(f"torch.{kind}")
    vars(module).update(_driver(Machine(kind)))
    vars(module).update(is_available=lambda: False, device_count=lambda: 0)
    if not hasattr(torch, kind):
        torch.utils.rename_privateuse1_backend(kind)
        torch._register_device_module(kind, module)


@contextlib.contextmanager
def emulated(
    capability: tuple[int, int] = (9, 0), kind: str = "cuda", count: int = 1, index: int = 0
) -> Iterator[Machine]:
    """Everything inside sees ``count`` devices of this kind; this process's is number ``index``."""
    if kind == NPU.name:
        register(kind)
    # torch lists once, at the first ``with torch.device``, what such a context acts on: with the stand-in for
    # torch.tensor in that list, later models from files would be left with buffers without values
    _device_constructors()
    machine = Machine(kind, capability, count, index)
    with contextlib.ExitStack() as stack:
        for owner, names in _fakes(machine):
            for name, value in names.items():
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, value))
        for switch, setter, value in (
            (torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors, True),
            (torch.autograd.is_multithreading_enabled, torch.autograd.set_multithreading_enabled, False),
        ):
            stack.callback(setter, switch())
            setter(value)
        stack.enter_context(Emulation(machine))
        yield machine


def _fakes(machine: Machine) -> Iterator[tuple[Any, dict[str, Any]]]:
    from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param

    yield getattr(torch, machine.kind), _driver(machine)
    yield torch.accelerator, _accelerator(machine)
    if machine.kind == "cuda":
        yield torch.version, {"cuda": "13.0"}
    yield nn.Module, {"to": lambda module, *args, **kwargs: _moved(module, machine, *args, **kwargs)}
    yield _fsdp_param, {"free_storage": _spoil, "alloc_storage": lambda tensor, *_: None}
    yield _fsdp_init, {"_move_states_to_device": lambda params, buffers, device: None}
    plain, autocast = torch.tensor, torch.autocast
    to = Tensor.to

    def tensor_to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], DeviceTensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        located = {name: _located(machine, value) for name, value in kwargs.items()}
        return to(self, *(_located(machine, x) for x in args), **located)

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made = plain(data, **kwargs)
        return made if device is None else made.to(device)

    def cast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == machine.kind else device_type, *args, **kwargs)

    yield Tensor, {"to": tensor_to, "pin_memory": _pinned, "is_pinned": lambda x, *_: hasattr(x, _PINNED)}
    side = type("Stream", (_SideStream,), {"machine": machine})
    yield torch, {"tensor": tensor, "autocast": cast, "Stream": side, "Event": _Event}
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(tensors: Any, *args: Any) -> Any:
        """Optimizers take the device of a list of tensors from C++."""
        ours = any(isinstance(x, DeviceTensor) for row in tensors for x in row)
        place = {torch.device("cpu"): machine.device} if ours else {}
        return {(place.get(d, d), dtype): found for (d, dtype), found in group(tensors, *args).items()}

    yield torch._C, {"_group_tensors_by_device_and_dtype": grouped}
    yield F, {"scaled_dot_product_attention": emulated_sdpa.attention, "one_hot": _one_hot}
    yield flex_attention, {"compiled_flex": lambda: emulated_flex.call}
    yield kernel_choice, {"triton_missing": lambda _: machine.no_triton}
    # torch composes these of others for all but real devices, before Python could see them
    names = ("_fused_rms_norm", "_fused_rms_norm_backward")
    yield torch.ops.aten, {name: _Direct(getattr(torch.ops.aten, name)) for name in names}


def _one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
    """For a subclass of tensors torch's own compares with numbers on the host."""
    count = num_classes if num_classes >= 0 else int(classes.max()) + 1
    return classes.new_zeros((*classes.shape, count)).scatter_(-1, classes.unsqueeze(-1), 1)


class _Direct:
    """An operator whose calls go past torch's dispatcher."""

    def __init__(self, packet: Any) -> None:
        self.packet = packet

    def __call__(self, *args: Any) -> Any:
        return run(self.packet.default, args, {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.packet, name)


def _driver(machine: Machine) -> dict[str, Callable[..., Any]]:
    """``torch.cuda`` (or the like) as of a machine with such devices."""
    major, minor = machine.capability
    properties = SimpleNamespace(
        name="Emulated",
        major=major,
        minor=minor,
        total_memory=machine.memory_bytes,
        multi_processor_count=108,
        gcnArchName="Emulated",  # a CUDA build of torch gives the card's name
    )
    return {
        **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
        **dict.fromkeys(("_is_in_bad_fork",), lambda: False),
        **dict.fromkeys(("_lazy_init", "empty_cache"), lambda: None),
        **dict.fromkeys(("current_stream", "default_stream"), lambda *_: _Stream()),
        "device_count": lambda: machine.count,
        "current_device": lambda: machine.index,
        "current_allocated_memory": lambda: machine.live,
        "recommended_max_memory": lambda: machine.memory_bytes,
        "set_device": lambda *_: None,
        "device": lambda *_: contextlib.nullcontext(),
        "stream": lambda *_: contextlib.nullcontext(),
        "synchronize": lambda *_: machine.wait("synchronize"),
        "get_device_capability": lambda *_: machine.capability,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: properties.name,
        "is_bf16_supported": lambda *_, **__: True,  # true from 8.0 on, and of emulation below
        "mem_get_info": lambda *_: (machine.memory_bytes - machine.live, machine.memory_bytes),
        "memory_allocated": lambda *_: machine.live,
        "max_memory_allocated": lambda *_: machine.peak,
        "memory_reserved": lambda *_: machine.live,
        "max_memory_reserved": lambda *_: machine.peak,
        "memory_stats": lambda *_: {},
        "reset_peak_memory_stats": lambda *_: machine.forget(),
        "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda *_: None,
        "set_sync_debug_mode": lambda mode: setattr(machine, "sync_debug", mode),
        "Stream": _Stream,
        "Event": _Event,
        "CUDAGraph": graph_class(machine),
        "graph": capturing,
        "graph_pool_handle": lambda: (0, 0),
    }


def _accelerator(machine: Machine) -> dict[str, Callable[..., Any]]:
    """``torch.accelerator``: the same by its own names."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda *_, **__: torch.device(machine.kind),
        "device_count": lambda: machine.count,
        "current_device_index": lambda: machine.index,
        "current_stream": lambda *_: _Stream(),
        "set_device_index": lambda *_: None,
        "synchronize": lambda *_: machine.wait("synchronize"),
        "max_memory_allocated": lambda *_: machine.peak,
        "memory_allocated": lambda *_: machine.live,
        "get_memory_info": lambda *_: (machine.memory_bytes - machine.live, machine.memory_bytes),
        "reset_peak_memory_stats": lambda *_: machine.forget(),
        "get_device_capability": lambda *_: {"supported_dtypes": set()},
        **({} if KINDS[machine.kind].pins else dict.fromkeys(_OF_ALLOCATOR, _no_statistics)),
    }


_OF_ALLOCATOR = ("max_memory_allocated", "memory_allocated", "get_memory_info")


def _no_statistics(*_: object) -> int:
    raise RuntimeError("Allocator for mps is not a DeviceAllocator.")


class _Stream:
    """Everything happens in order: nothing is to be waited for."""

    device, stream_id, device_index, device_type = torch.device("cpu"), 0, 0, 1

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...
    def wait_event(self, event: Any) -> None:
        if event.stream is not None:
            event.stream.waited = max(event.stream.waited, event.place)

    def synchronize(self) -> None: ...
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...
    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        made = event or _Event()
        made.at = time.perf_counter()
        return made


class _SideStream(_Stream):
    """``torch.Stream``: what is made inside may be read by the default stream after a wait for it only."""

    machine: Machine

    def __init__(self, *_: Any, **__: Any) -> None:
        self.enqueued, self.waited = 0, 0

    def enqueue(self) -> int:
        self.enqueued += 1
        return self.enqueued

    def __enter__(self) -> _SideStream:
        self.machine.stream = self
        return self

    def __exit__(self, *_: Any) -> None:
        self.machine.stream = None

    def record_event(self, event: Any = None) -> Any:
        made = event or _Event()
        made.stream, made.place = self, self.enqueued
        return made


class _Event:
    stream: _SideStream | None = None
    place = 0
    at = 0.0

    def __init__(self, *_: Any, enable_timing: bool = False, **__: Any) -> None:
        self.timed = enable_timing

    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds; of events with a time alone, as on a real device."""
        if not (self.timed and end.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return (end.at - self.at) * 1e3


def _located(machine: Machine, value: Any) -> Any:
    """``cuda`` as ``cuda:0``: C++ would ask a device's guard for the number."""
    return machine.device if machine.is_ours(value) else value


def _pinned(tensor: Tensor, *_: Any) -> Tensor:
    """A copy whose further copies to the device may be asynchronous."""
    made = tensor.clone()
    setattr(made, _PINNED, True)
    return made


def _spoil(tensor: Tensor) -> None:
    """A freed weight must not be read: NaN shows that it was."""
    numbers = tensor.numbers if isinstance(tensor, DeviceTensor) else tensor
    if numbers.is_floating_point():
        with torch.no_grad():
            numbers.fill_(float("nan"))


@torch.no_grad()
def _moved(module: nn.Module, machine: Machine, *args: Any, **kwargs: Any) -> nn.Module:
    """``Module.to``. A device's parameter is another object than the host's here: it takes over its
    attributes, and its place in every module that shares it.
    """
    device, dtype, _, _ = torch._C._nn._parse_to(*(_located(machine, a) for a in args), **kwargs)  # type: ignore
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if id(old) not in made:
                    new = old.to(device=device, dtype=dtype if old.is_floating_point() else None)
                    if new is not old and isinstance(old, nn.Parameter):
                        new = nn.Parameter(new.detach(), old.requires_grad)
                        own = ("numbers", "machine", "_is_param")
                        vars(new).update({k: v for k, v in vars(old).items() if k not in own})
                    made[id(old)] = (old, new)
                table[name] = made[id(old)][1]  # type: ignore[assignment]
    return module
