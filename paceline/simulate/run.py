"""Simulate one optimizer step of a plan: model states, saved activations, collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param

from paceline.core.json_types import Json, JsonObject
from paceline.models.compute_dtype import compute_copy
from paceline.models.fused_layers import rms_norm, swiglu
from paceline.models.heads import chunked_cross_entropy
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.mesh import Mesh
from paceline.plan.model.kernels import LEAST_CHUNK
from paceline.plan.plan import Plan
from paceline.plan.strategies.replicated import SINGLE
from paceline.plan.strategies.spec import Simulated, StrategySpec, strategy_spec
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output
from paceline.runtime.process_group.world import World
from paceline.simulate.counting import (
    Collectives,
    FakeValues,
    LiveBytes,
    SavedActivations,
    gathered_bytes,
    held_bytes,
)
from paceline.simulate.model import FakeFactory
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy


def simulate(plan: Plan, config: Mapping[str, Json], chunk_bytes: int = LEAST_CHUNK) -> JsonObject:
    """Simulate one step; return bytes of ``states``, ``activations``, ``head`` and ``gathered`` (weights that
    are whole when the backward begins), and ``collectives``.

    ``chunk_bytes``: size of the logits that the head computes at a time on the planned device.

    ``collectives``: kind → [count, bytes]; all are JSON types. If a strategy's engine reads real memory
    (DDP's reducer, DeepSpeed), only the module is run, on one process: see ``plan.cost.simulation_check``.
    """
    plan = replace(plan, engine=plan.engine.built_whole())
    spec = strategy_spec(plan.strategy)
    runs_all = spec.simulated is Simulated.ALL
    alone = plan if runs_all else replace(plan, strategy=SINGLE.name, world_size=1, mesh=Mesh())
    world = World.pretend(alone.world_size)
    try:
        with another_machine(chunk_bytes):
            result = _step(alone, config, world, _options(plan, spec), chunk_bytes)
    finally:
        world.close(ok=True)
    if not runs_all:
        del result["collectives"], result["gathered"]
    if spec.simulated is Simulated.MODULE:
        del result["states"]
    return result


def _options(plan: Plan, spec: StrategySpec) -> BuildOptions | None:
    """Return the build options of an engine that casts weights; None: the simulated strategy decides."""
    layout = spec.layout(plan.mesh, plan.engine)
    if not spec.engine_casts or layout is None:
        return None
    low = plan.precision.compute in ("bfloat16", "float16")
    return BuildOptions(fused=layout.whole_submodules, engine_casts=low)


def _step(
    plan: Plan, config: Mapping[str, Json], world: World, options: BuildOptions | None, chunk_bytes: int
) -> JsonObject:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    factory = FakeFactory(plan, config, mode, options, chunk_bytes)
    strategy = make_strategy(plan.strategy, world, plan)
    batch = _batch(plan, mode)
    getattr(strategy, "mesh", None)  # created once, from real rank numbers
    with (
        nullcontext() if strategy_spec(plan.strategy).shards_weights else mode
    ):  # fully_shard reads ranks from meshes, which needs real tensors
        handle = strategy.prepare(factory.role, factory, plan.optimizer)
    # A first pass, uncounted; then one micro-batch without gradient sync, and the last one with it.
    with mode, FakeValues():
        # the first pass creates what later ones reuse: DTensor shapes, optimizer states
        _micro_step(strategy, handle, batch, plan, None)
        _optimize(handle)
        strategy.zero_grad(handle)
        plain = _plain_last_layer(handle, plan.recompute)
        kept, once, between = SavedActivations(handle.root), Collectives(), Collectives()
        # the first micro-batch may gather what all others find; those between are alike, so one is run
        with strategy.no_sync(handle):
            for counted in (once, between)[: plan.batch.accumulation - 1]:
                with counted:
                    _micro_step(strategy, handle, batch, plan, None)
        with once:
            _micro_step(strategy, handle, batch, plan, kept)
            _optimize(handle)
        states = _states(handle)
        # The same beside these states and gradients, with every layer as it trains
        for layer in plain:
            layer.gradient_checkpointing = True  # type: ignore[assignment]
        if plan.batch.accumulation == 1:  # a window's gradients begin anew
            strategy.zero_grad(handle)
        live = LiveBytes(_held(handle))
        with live:
            _micro_step(strategy, handle, batch, plan, None)
    times = plan.batch.accumulation - 2
    kinds = sorted({*once.count, *between.count})
    sent = {
        k: [once.count[k] + times * between.count[k], once.bytes[k] + times * between.bytes[k]] for k in kinds
    }
    return {
        "states": states,
        "activations": kept.trunk,
        "head": kept.head,
        "gathered": kept.gathered,
        "peak": live.peak,
        "collectives": sent,
    }


def _micro_step(
    strategy: Strategy, handle: Handle, batch: Batch, plan: Plan, kept: SavedActivations | None
) -> None:
    local_batch = strategy.shard_batch(batch)
    handle.root.train()
    with kept.watching() if kept else nullcontext():
        outputs = handle.module(local_batch, _outputs(plan))
    loss = torch.stack([v.sum() for v in outputs.values() if v.requires_grad]).sum()
    if kept:
        kept.gathered = gathered_bytes(handle.root)
        kept.release()
    loss.backward()  # type: ignore[no-untyped-call]


def _outputs(plan: Plan) -> frozenset[Output]:
    """Return the outputs to request, without those that compare with another model, which does not exist
    here.

    The other outputs save as much memory.
    """
    return frozenset(map(Output, algorithm_spec(plan.algorithm).outputs)) - {Output.DIVERGENCE}


def _optimize(handle: Handle) -> None:
    assert handle.optimizer is not None
    take = getattr(handle, "take_gradients", None)
    if take is not None:
        take()
    handle.optimizer.step()


def _held(handle: Handle) -> list[Tensor]:
    """Return all tensors that exist between micro-batches."""
    assert handle.optimizer is not None
    parameters = list(handle.root.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [v for state in handle.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return [*parameters, *map(compute_copy, parameters), *handle.root.buffers(), *gradients, *states]


def _states(handle: Handle) -> dict[str, int]:
    assert handle.optimizer is not None
    parameters = list(handle.root.parameters())
    states = handle.optimizer.state.values()
    return {
        "parameters": held_bytes([*parameters, *map(compute_copy, parameters)]),
        "gradients": held_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer": held_bytes(
            v for state in states for v in state.values() if isinstance(v, Tensor) and v.ndim
        ),
    }


def _plain_last_layer(handle: Handle, recompute: bool) -> list[nn.Module]:
    """Run the last layer without recomputation: the backward begins with all layers' inputs and one layer's
    activations. Return that layer.

    The last layer is the first that the backward needs.
    """
    layers = [m for m in handle.root.modules() if getattr(m, "gradient_checkpointing", None) is True]
    for layer in layers[-1:] if recompute else []:
        layer.gradient_checkpointing = False  # type: ignore[assignment]
    return layers[-1:] if recompute else []


def _batch(plan: Plan, mode: FakeTensorMode) -> Batch:
    """Return rows of full length with every position labelled.

    Boundaries are real tensors, as attention loops over them.
    """
    documents = plan.batch.micro_batch * algorithm_spec(plan.algorithm).documents_a_row
    length = plan.seq_len
    bounds = torch.arange(documents + 1, dtype=torch.int32) * length
    with mode:
        ids, labels = (torch.zeros(1, documents * length, dtype=torch.int64) for _ in range(2))
        positions, index = torch.arange(length).repeat(documents)[None], torch.arange(documents)
    return Batch(ids, labels, positions, bounds, length, index, documents)


@contextmanager
def another_machine(chunk_bytes: int = LEAST_CHUNK) -> Iterator[None]:
    """Make kernels ignore this CPU's capabilities and cache sizes: the plan is for another machine.

    Its head works on ``chunk_bytes`` of fp32 logits at a time.
    """
    able = torch.cpu.get_capabilities
    blocks, cache = swiglu.BLOCK_ELEMENTS, chunked_cross_entropy.CACHE_BYTES
    with ExitStack() as undo:
        undo.callback(setattr, torch.cpu, "get_capabilities", able)
        undo.callback(setattr, swiglu, "BLOCK_ELEMENTS", blocks)
        undo.callback(setattr, chunked_cross_entropy, "CACHE_BYTES", cache)
        undo.callback(setattr, rms_norm, "LEAST_GAIN", rms_norm.LEAST_GAIN)
        every = dict.fromkeys(("avx512_bf16", "avx512_fp16", "bf16", "fp16"), True)
        torch.cpu.get_capabilities = lambda: every  # type: ignore[assignment]
        swiglu.BLOCK_ELEMENTS, chunked_cross_entropy.CACHE_BYTES = 2**60, chunk_bytes
        rms_norm.LEAST_GAIN = math.inf  # no output values are read there
        if hasattr(
            _fsdp_param, "_chunk_with_empty"
        ):  # FSDP2 chunks every weight for all ranks and keeps one: here the others are not created
            undo.callback(setattr, _fsdp_param, "_chunk_with_empty", _fsdp_param._chunk_with_empty)
            _fsdp_param._chunk_with_empty = _Pieces  # type: ignore[assignment]
        yield


class _Pieces:
    """The chunks of ``torch.chunk``, each created when it is indexed; empty ones at the end."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._each = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        size = self._tensor.size(self._dim)
        start = min(size, self._each * range(self._count)[index])
        return self._tensor.narrow(self._dim, start, min(self._each, size - start))
