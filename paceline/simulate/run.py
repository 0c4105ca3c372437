"""One optimizer step of a plan, simulated: states, what is kept for the backward, collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param

from paceline.models import head_kernels, norms, swiglu
from paceline.models.precision import compute_copy
from paceline.plan.algorithms.base import algorithm_spec
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Plan
from paceline.plan.strategies.base import Simulated, StrategySpec, strategy_spec
from paceline.plan.strategies.options import FsdpOptions
from paceline.plan.strategies.replicated import SINGLE
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Ask
from paceline.runtime.world import World
from paceline.simulate.counting import Answers, Collectives, Kept, held_bytes
from paceline.simulate.model import FakeFactory
from paceline.strategies.base import Strategy
from paceline.strategies.handle import Handle
from paceline.strategies.registry import make_strategy


def simulate(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON types: bytes of ``states``, of ``activations`` and ``head``; ``collectives`` of a step by kind: [how many, bytes].

    Of a strategy whose engine reads real memory (DDP's reducer, DeepSpeed) only the module is run, alone: see ``plan.predict.simulation``.
    """
    if isinstance(plan.engine, FsdpOptions):
        plan = replace(plan, engine=replace(plan.engine, meta_start=False))  # nothing is to be sent: every rank builds
    spec = strategy_spec(plan.strategy)
    whole = spec.simulated is Simulated.ALL
    alone = plan if whole else replace(plan, strategy=SINGLE.name, world_size=1, mesh=Mesh())
    world = World.pretend(alone.world_size)
    try:
        with _another_machine():
            found = _step(alone, config, world, _options(plan, spec))
    finally:
        world.close(ok=True)
    if not whole:
        del found["collectives"]
    if spec.simulated is Simulated.MODULE:
        del found["states"]
    return found


def _options(plan: Plan, spec: StrategySpec) -> BuildOptions | None:
    """How an engine that casts has the model built; None: the strategy that is run says so itself."""
    layout = spec.layout(plan.mesh, plan.engine)
    if not spec.engine_casts or layout is None:
        return None
    low = plan.precision.compute in ("bfloat16", "float16")
    return BuildOptions(fused=layout.whole_submodules, engine_casts=low)


def _step(plan: Plan, config: Mapping[str, Any], world: World, options: BuildOptions | None) -> dict[str, Any]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    factory = FakeFactory(plan, config, mode, options)
    strategy = make_strategy(plan.strategy, world, plan)
    batch = _batch(plan, mode)
    getattr(strategy, "mesh", None)  # made once, of ranks' real numbers
    with (
        nullcontext() if strategy_spec(plan.strategy).shards_weights else mode
    ):  # fully_shard asks meshes for ranks, which are real numbers
        handle = strategy.prepare(factory.role, factory, plan.optimizer)
    with mode, Answers():
        _micro_step(
            strategy, handle, batch, plan, None
        )  # the first pass makes what later ones find: shapes of DTensors, states
        _optimize(handle)
        strategy.zero_grad(handle)
        _plain_last_layer(handle, plan.recompute)
        kept, earlier, last = Kept(handle.root), Collectives(), Collectives()
        if plan.batch.accumulation > 1:
            with strategy.no_sync(handle), earlier:
                _micro_step(strategy, handle, batch, plan, None)
        with last:
            _micro_step(strategy, handle, batch, plan, kept)
            _optimize(handle)
        states = _states(handle)
    times = plan.batch.accumulation - 1
    kinds = sorted({*earlier.count, *last.count})
    sent = {k: [last.count[k] + times * earlier.count[k], last.bytes[k] + times * earlier.bytes[k]] for k in kinds}
    return {"states": states, "activations": kept.trunk, "head": kept.head, "collectives": sent}


def _micro_step(strategy: Strategy, handle: Handle, batch: Batch, plan: Plan, kept: Kept | None) -> None:
    placed = strategy.shard_batch(batch)
    handle.root.train()
    with kept.watching() if kept else nullcontext():
        outputs = handle.module(placed, _asked(plan))
    loss = torch.stack([v.sum() for v in outputs.values() if v.requires_grad]).sum()
    if kept:
        kept.forget()
    loss.backward()  # type: ignore[no-untyped-call]


def _asked(plan: Plan) -> frozenset[Ask]:
    """All but a comparison with another model's states, which are not here: what is asked beside it keeps as much."""
    return frozenset(map(Ask, algorithm_spec(plan.algorithm).asks)) - {Ask.DIVERGENCE}


def _optimize(handle: Handle) -> None:
    assert handle.optimizer is not None
    take = getattr(handle, "take_gradients", None)
    if take is not None:
        take()
    handle.optimizer.step()


def _states(handle: Handle) -> dict[str, int]:
    assert handle.optimizer is not None
    parameters = list(handle.root.parameters())
    states = handle.optimizer.state.values()
    return {
        "parameters": held_bytes([*parameters, *map(compute_copy, parameters)]),
        "gradients": held_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer": held_bytes(v for state in states for v in state.values() if isinstance(v, Tensor) and v.ndim),
    }


def _plain_last_layer(handle: Handle, recompute: bool) -> None:
    """With recomputation the peak has the inputs of all layers and one whole layer: the last, which the backward needs first, runs plain."""
    layers = [m for m in handle.root.modules() if getattr(m, "gradient_checkpointing", None) is True]
    if recompute and layers:
        layers[-1].gradient_checkpointing = False  # type: ignore[assignment]


def _batch(plan: Plan, mode: FakeTensorMode) -> Batch:
    """Rows of full length, every position labelled. Boundaries are real numbers: attention loops over them."""
    documents = plan.batch.micro_batch * algorithm_spec(plan.algorithm).documents_a_row
    length = plan.seq_len
    bounds = torch.arange(documents + 1, dtype=torch.int32) * length
    with mode:
        ids, labels = (torch.zeros(1, documents * length, dtype=torch.int64) for _ in range(2))
        positions, index = torch.arange(length).repeat(documents)[None], torch.arange(documents)
    return Batch(ids, labels, positions, bounds, length, index, documents)


@contextmanager
def _another_machine() -> Iterator[None]:
    """What this processor can do and how large its caches are says nothing about the machine that is planned for."""
    able = torch.cpu.get_capabilities
    blocks, cache = swiglu._BLOCK_ELEMENTS, head_kernels._CACHE_BYTES
    with ExitStack() as undo:
        undo.callback(setattr, torch.cpu, "get_capabilities", able)
        undo.callback(setattr, swiglu, "_BLOCK_ELEMENTS", blocks)
        undo.callback(setattr, head_kernels, "_CACHE_BYTES", cache)
        undo.callback(setattr, norms, "LEAST_GAIN", norms.LEAST_GAIN)
        every = dict.fromkeys(("avx512_bf16", "avx512_fp16", "bf16", "fp16"), True)
        torch.cpu.get_capabilities = lambda: every  # type: ignore[assignment]
        swiglu._BLOCK_ELEMENTS = head_kernels._CACHE_BYTES = 2**60
        norms.LEAST_GAIN = math.inf  # nothing is read off an output there
        if hasattr(
            _fsdp_param, "_chunk_with_empty"
        ):  # FSDP2 cuts every weight for all ranks and takes one piece: here the others are left out
            undo.callback(setattr, _fsdp_param, "_chunk_with_empty", _fsdp_param._chunk_with_empty)
            _fsdp_param._chunk_with_empty = _Pieces  # type: ignore[assignment]
        yield


class _Pieces:
    """What ``torch.chunk`` cuts, each piece when it is asked for; empty ones at the end."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._each = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        size = self._tensor.size(self._dim)
        start = min(size, self._each * range(self._count)[index])
        return self._tensor.narrow(self._dim, start, min(self._each, size - start))
