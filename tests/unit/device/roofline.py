"""A window of a full-size model on the emulated device without numbers: kernels, bytes, FLOPs and the time of
an H100 by a roofline. No timing: what the window asks of a device, however large the model.

    PYTHONPATH=. python tests/unit/device/roofline.py [--json] [llama-3-8b | qwen2.5-0.5b | gemma-2-2b] ...

``gemma-2-2b:8`` has 8 layers, ``gemma-2-2b:8:8192:1`` that in 8,192 tokens of one document.

Products at 72 % of 989 TFLOP/s, flash and flex at 40 %, memory at 88 % of 3.35 TB/s; each kernel takes the
longer of the two, launches are free. Two depths are counted, and the whole model follows, as layers are
alike.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

import emulated_rules
from device_steps import planned
from emulated_device import emulated
from emulated_kernels import OWN
from emulated_machine import Machine
from emulated_tensor import DeviceTensor
from roofline_flex import FLEX_WITHOUT_NUMBERS, flex_flops, visible_and_counted

from paceline.algorithms.algorithm import algorithm_class
from paceline.models.attention.flex_attention import VisibleKeys
from paceline.models.module_tensors import replace_tensors
from paceline.plan.model.kernels import head_chunk_bytes
from paceline.plan.model.model_catalogue import named_config
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.simulate.counting import FakeValues
from paceline.simulate.model import FakeFactory
from paceline.simulate.run import another_machine
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

PEAK = 989e12
PRODUCTS, FLASH, MEMORY = 0.72 * PEAK, 0.40 * PEAK, 0.88 * 3.35e12
#: tokens a micro-batch and documents in it
WINDOWS = {"llama-3-8b": (16384, 4), "qwen2.5-0.5b": (16384, 32), "gemma-2-2b": (16384, 2)}
DEPTHS = (2, 4)
_GATHERS = frozenset(["embedding", "index_select", "gather", "index"])
_OVERWRITES = frozenset(["copy_", "zero_", "fill_", "_foreach_copy_", "_foreach_zero_"])
_READS_TWICE = frozenset(["nll_gradient"])  # its first argument


@dataclass
class Roofline:
    """Sums over the kernels of a window. ``seconds``: by operation."""

    kernels: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    seconds: Counter[str] = field(default_factory=Counter)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One kernel: what it reads and writes, each tensor once, and what it multiplies."""
        name = func._schema.name.partition("::")[2]
        read, written = _touched(func, name, args, kwargs, out)
        if name in _GATHERS:
            moved = 2 * sum(_size(x) for x in written)
        else:
            moved = sum(_size(x) for x in (*read, *written))
        if name in _READS_TWICE:
            moved += _size(args[0])
        flops = _flops(func, name, args, kwargs, out)
        rate = FLASH if "attn" in name or "attention" in name or "flex" in name else PRODUCTS
        self.kernels += 1
        self.bytes += moved
        self.flops += flops
        self.seconds[name] += max(moved / MEMORY, flops / rate)

    def at(self, other: Roofline, share: float) -> Roofline:
        """On the line through this and ``other``, ``share`` of the way."""
        names = {*self.seconds, *other.seconds}

        def line(a: float, b: float) -> float:
            return a + (b - a) * share

        return Roofline(
            *(line(getattr(self, n), getattr(other, n)) for n in ("kernels", "bytes", "flops")),
            Counter({n: line(self.seconds[n], other.seconds[n]) for n in names}),
        )

    @property
    def step(self) -> float:
        """Seconds of the window."""
        return sum(self.seconds.values())


def _touched(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a kernel reads and that it writes, by its schema, each once: those that it changes are
    both, unless it only fills them.
    """
    read: dict[int, Tensor] = {}
    written = {id(x): x for x in tree_leaves(out) if isinstance(x, Tensor)}
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        tensors = {id(x): x for x in tree_leaves(value) if isinstance(x, Tensor)}
        changed = argument.alias_info is not None and argument.alias_info.is_write
        written |= tensors if changed else {}
        if not (argument.is_out or (changed and name in _OVERWRITES)):
            read |= tensors
    return list(read.values()), list(written.values())


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> float:
    """Of products and attention (causal: half of the square); 0 of others."""
    if "varlen_attn" in name:
        backward = "backward" in name
        query, bounds, keys = (args[1], *args[6:8]) if backward else (args[0], *args[3:5])
        return 4.0 * query.shape[1] * query.shape[2] * _pairs(query, bounds, keys) * (2.5 if backward else 1)
    if name in ("flex", "flex_backward"):
        return flex_flops(name, args)
    if name in ("addmm", "addmm_", "baddbmm_"):  # in place: not in torch's table
        return 2.0 * args[1].numel() * args[2].shape[-1]
    found = flop_registry.get(func._overloadpacket)
    if found is None:
        return 0.0
    plain = lambda x: x.numbers if isinstance(x, DeviceTensor) else x  # noqa: E731
    args, kwargs, out = (torch.utils._pytree.tree_map(plain, x) for x in (args, kwargs, out))
    return float(found(*args, **kwargs, out_val=out))


def _pairs(query: Tensor, bounds: DeviceTensor, keys: DeviceTensor) -> float:
    """Queries times keys of causal attention; documents are of one length where no tensor has numbers."""
    if isinstance(bounds.numbers, FakeTensor):
        return query.shape[0] ** 2 / (bounds.shape[0] - 1) / 2
    own, seen = (x.numbers.diff().double() for x in (bounds, keys))
    return float((own * (seen - own) + own * own / 2).sum())


def _flash(query: DeviceTensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    shapes = (
        (query.shape, query.dtype),
        ((query.shape[1], query.shape[0]), torch.float32),
        ((2,), torch.uint64),
    )
    return tuple(DeviceTensor(torch.empty(s, dtype=d), query.machine) for s, d in shapes)


def _flash_backward(grad: DeviceTensor, *inputs: DeviceTensor, **__: Any) -> tuple[Tensor, ...]:
    return tuple(DeviceTensor(torch.empty_like(x.numbers), grad.machine) for x in inputs[:3])


class Answers(TorchDispatchMode):
    """What the host reads of numbers that are not there: one, everywhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return True if args[0].dtype == torch.bool else 1.0 if args[0].is_floating_point() else 1
        if func is torch.ops.aten.index.Tensor and isinstance(args[0], Tensor):
            [*others, last] = args[1]
            if not others and last is not None and last.dtype == torch.bool:  # every place is chosen
                return args[0].flatten(0, last.dim() - 1).clone()
        return func(*args, **(kwargs or {}))


WITHOUT_NUMBERS = {
    "torch_attn::_varlen_attn": _flash,
    "torch_attn::_varlen_attn_backward": _flash_backward,
    **FLEX_WITHOUT_NUMBERS,
}


@contextmanager
def counting_kernels(found: Roofline) -> Iterator[Roofline]:
    """Every operation on the device that starts a kernel is noted."""
    run, arrives = emulated_rules.run, emulated_rules.arrives_on

    def made(machine: Machine, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        out = arrives(machine, func, args, kwargs, tensors)
        if not tensors and emulated_rules.launches(func):  # a copy from the host is no kernel
            found.note(func, args, {}, out)
        return out

    def noted(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = run(func, args, kwargs)
        if emulated_rules.launches(func):
            found.note(func, args, kwargs, out)
        return out

    with mock.patch.multiple(emulated_rules, run=noted, arrives_on=made):
        yield found


def move_onto(module: nn.Module, machine: Machine) -> None:
    """Every tensor of ``module`` on the emulated device."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(tensor, Tensor) and id(tensor) not in made:
                made[id(tensor)] = _on_device(tensor, machine)
    replace_tensors(module, made)
    low = getattr(module, "low_precision", None)
    if low is not None:
        low.masters = [made.get(id(master), master) for master in low.masters]


def _on_device(tensor: Tensor, machine: Machine) -> Tensor:
    there: Tensor = DeviceTensor(tensor.detach(), machine)
    if not isinstance(tensor, nn.Parameter):
        return there
    there = nn.Parameter(there, requires_grad=tensor.requires_grad)
    for name, value in vars(tensor).items():
        setattr(there, name, _on_device(value, machine) if isinstance(value, Tensor) else value)
    return there


def size_head(module: Any, machine: Machine) -> None:
    """The head was built for a CPU; the factory asks the device's memory."""
    head = module.head
    head.chunk_bytes = head_chunk_bytes(machine.memory_bytes)
    head.shape = replace(head.shape, chunk_bytes=head.chunk_bytes)


@dataclass(frozen=True)
class Window:
    """What one window asked for: kernels, waits of the host, weights that multiply (all but a lookup's)."""

    roofline: Roofline
    waits: int
    weights: float

    def at(self, other: Window, share: float) -> Window:
        """On the line through this and ``other``, ``share`` of the way; waits do not grow with layers."""
        weights = self.weights + (other.weights - self.weights) * share
        return Window(self.roofline.at(other.roofline, share), max(self.waits, other.waits), weights)


def documents_batch(tokens: int, documents: int) -> Batch:
    """Documents of equal length; real numbers, as loops of the host read them."""
    length = tokens // documents
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    bounds = torch.arange(documents + 1, dtype=torch.int32) * length
    positions = torch.arange(length).repeat(documents)[None]
    return Batch(ids, ids, positions, bounds, length, torch.arange(documents), documents)


def window(config: Mapping[str, Any], tokens: int, documents: int) -> Window:
    """The second window of ``sft`` in bf16 in one process, one micro-batch."""
    _, plan = planned(config, "bf16", (9, 0), training={"per_device_train_batch_size": documents})
    found, batch = Roofline(), documents_batch(tokens, documents)
    with ExitStack() as stack:
        stack.enter_context(another_machine())
        stack.enter_context(mock.patch.dict(OWN, WITHOUT_NUMBERS))
        stack.enter_context(
            mock.patch.object(VisibleKeys, "of", visible_and_counted(batch.cu_seqlens.tolist()))
        )
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        module = FakeFactory(plan, config, mode)()
        machine = [stack.enter_context(c) for c in (mode, FakeValues(), Answers(), emulated())][-1]
        move_onto(module, machine)
        size_head(module, machine)
        strategy = make_strategy("single", World(0, 0, 1, 1, machine.device, "none", None), plan)
        handles = {Role.POLICY: strategy.prepare(Role.POLICY, lambda *_: module, plan.optimizer)}
        runner, algorithm = make_runner(strategy), algorithm_class("sft")()

        def train() -> None:
            runner.train_window(
                handles, [batch], algorithm, lr=1e-4, max_grad_norm=1.0, generator_seed=lambda j: j
            )

        train()  # makes what later ones reuse
        machine.forget()
        with counting_kernels(found):
            train()
        embedding = module.hf.get_input_embeddings().weight
        tied = embedding is module.hf.get_output_embeddings().weight
        weights = sum(p.numel() for p in module.parameters()) - (0 if tied else embedding.numel())
        return Window(found, sum(machine.waits.values()), weights)


def whole(name: str, layers: int | None = None, shape: tuple[int, int] | None = None) -> tuple[Window, float]:
    """The window of the model called ``name``, with so many ``layers`` (all) and a ``shape`` of tokens and
    documents (that of WINDOWS), and its MFU (model FLOPs).

    Model FLOPs: 6 · tokens · weights, and 6 · tokens · length · heads · size a layer for causal attention
    over whole documents (a layer's sliding window takes less: there it is an upper bound). No recomputation.
    """
    tokens, documents = shape or WINDOWS[name]
    config = dict(named_config(name))
    layers = layers or int(config["num_hidden_layers"])
    few, more = (window({**config, "num_hidden_layers": n}, tokens, documents) for n in DEPTHS)
    found = few.at(more, (layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0]))
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    attention = 6.0 * tokens * (tokens // documents) * heads * size * layers
    return found, (6.0 * tokens * found.weights + attention) / found.roofline.step / PEAK


def main() -> None:
    """Print the table."""
    chosen = [argument for argument in sys.argv[1:] if argument != "--json"]
    for one in chosen or WINDOWS:
        name, *sizes = one.split(":")
        layers, tokens, documents = (*map(int, sizes), *(0, *WINDOWS[name])[len(sizes) :])
        found, mfu = whole(name, layers, (tokens, documents))
        if "--json" in sys.argv:
            print(json.dumps({"name": one, "milliseconds": found.roofline.step * 1e3, "mfu": mfu}))
            continue
        line = found.roofline
        print(
            f"{name}, {tokens:,} tokens in {documents} documents: {line.step * 1e3:,.0f} ms, MFU {mfu:.1%}; "
            f"{line.kernels:,.0f} kernels, {line.bytes / 1e9:,.0f} GB, {line.flops / 1e12:,.0f} TFLOP, "
            f"{found.waits} waits of the host"
        )
        longest = [f"{op} {seconds * 1e3:,.0f}" for op, seconds in line.seconds.most_common(10)]
        print("    ms by operation: " + ", ".join(longest), flush=True)


if __name__ == "__main__":
    main()
