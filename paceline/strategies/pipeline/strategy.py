"""Pipeline parallelism: each rank of a pipeline has some of the layers; a window's micro-batches run through
it by one of torch's schedules.

Gradients and parameters over the stages of a pipeline: whole ones, and the weight that two stages
share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.models.loading.materialize import build_on_meta, fill
from paceline.models.module_tensors import tensors_of
from paceline.models.parallel.pipeline_stages import small_layers_pass_tuples, split, token_ids
from paceline.models.parallel.tensor_parallel import apply_tensor_parallel
from paceline.models.role_module import RoleModule
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Plan
from paceline.plan.strategy_options import PipelineOptions
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.protocols.roles import Role
from paceline.protocols.shard import ShardReader
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.device_mesh import sharding_mesh
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.fsdp import state
from paceline.strategies.fsdp.state import Block, ShardedHandle, blocks_of, local
from paceline.strategies.fsdp.strategy import FSDP
from paceline.strategies.fsdp.wrapping import Units, shard
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.pipeline.schedules import MULTIPLE, FixedShape, Running, StageLayout, StageTensorSpec
from paceline.strategies.pipeline.stage_modules import PipelineRoot, ScheduleInput
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import WindowRunner
from paceline.strategies.window.weights import WindowLosses

_BUCKET_BYTES = 50 * 2**20  # as DDP's on a CPU: few messages, without a second copy of all gradients


@dataclass
class PipelineHandle(ShardedHandle):
    """``blocks`` are this rank's shards of its stages' parameters, ``copies`` those of the head's copy of a
    tied embedding.

    Copies are trained like the others; for norms and checkpoints they are the embedding's.
    """

    copies: list[Block] = field(default_factory=list)

    @property
    def shards(self) -> list[Block]:
        """Every shard that is stepped here, the copies last."""
        return [*self.blocks, *self.copies]


def whole_blocks(named: Iterable[tuple[str, nn.Parameter]], mesh: Mesh, rank: int) -> list[Block]:
    """Return blocks for parameters that every rank of a stage holds whole."""
    coordinates = mesh.coordinates(rank)
    return [
        Block(name, p, p, tuple(p.shape), (0,) * p.ndim, mesh.dp_replicate, coordinates.dp_replicate)
        for name, p in named
    ]


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """All-reduce gradients over ``group`` in place, in buckets of some tens of MB. Collective."""
    bucket: list[Tensor] = []
    for index, parameter in enumerate(parameters):
        assert parameter.grad is not None
        bucket.append(parameter.grad)
        if index + 1 == len(parameters) or sum(g.nbytes for g in bucket) >= _BUCKET_BYTES:
            # few messages instead of one a parameter
            flat = torch.cat([g.flatten() for g in bucket])
            dist.all_reduce(flat, group=group)
            for grad, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                grad.copy_(summed.view_as(grad))
            bucket = []


@torch.no_grad()
def exchange(handle: PipelineHandle, row: dist.ProcessGroup, first: int, last: int) -> None:
    """Give both holders of a tied weight the sum of both gradients, added in the same order, so that their
    steps are bitwise equal.

    ``first`` and ``last`` are the holders' ranks in the group ``row``. Collective between the two.
    """
    root = handle.root
    assert isinstance(root, PipelineRoot)
    held = [p for p in (root.tied, root.tied_copy) if p is not None and p.requires_grad]
    if not held:
        return
    grads = [local(p.grad) for p in held if p.grad is not None]
    assert len(grads) == len(held), "a tied weight has no gradient"
    # One rank may hold both (zbv); else the two holders swap gradients, and add them in the same order.
    if len(grads) == 2:
        total = grads[0] + grads[1]
    else:
        here = dist.get_rank(row)
        peer = dist.get_global_rank(row, last if here == first else first)
        sent, received = (
            grads[0].contiguous(),
            torch.empty_like(grads[0], memory_format=torch.contiguous_format),
        )
        work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peer, row), dist.P2POp(dist.irecv, received, peer, row)]
        )
        for transfer in work:
            transfer.wait()
        total = sent + received if here == first else received + sent
    for grad in grads:
        grad.copy_(total)


_EVAL_MICRO_BATCHES_A_RANK = 4  # in one run of the schedule: keeps the pipeline busy, and fits in memory


class PipelineRunner(WindowRunner):
    """Runs the micro-batches of a window through the pipeline by the strategy's schedule."""

    strategy: Pipeline

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        # the last schedule of each role, for the next window, which mostly has its shape and number
        self._schedules: dict[tuple[Role, bool], tuple[tuple[FixedShape, int], Running]] = {}

    def _accumulate(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        losses: WindowLosses,
        generator_seed: Callable[[int], int] | None,
    ) -> None:
        """Run the window through the schedule; afterwards every rank has the summed gradients of its
        parameters.
        """
        strategy, stage_layout, algorithm = self.strategy, self.strategy.stage_layout, losses.algorithm
        for handle in (handles[role] for role in algorithm.trains):
            assert isinstance(handle, PipelineHandle)

            def finish(outputs: dict[str, Tensor], batch: Batch, role: Role = handle.role) -> Tensor:
                return losses.add(role, outputs, batch)

            required = algorithm.required_outputs(handle.role, training=True) | stage_layout.extra_outputs
            self._run(
                handle, micro_batches, ScheduleInput((), required, finish, generator_seed), training=True
            )
            if not strategy.sharding and self.mesh.dp_replicate > 1:
                sum_gradients(handle.parameters(), strategy.mesh["dp_replicate"].get_group())
            exchange(
                handle, strategy.row, stage_layout.rank_of(0), stage_layout.rank_of(stage_layout.count - 1)
            )

    def _run(
        self, handle: Handle, micro_batches: Sequence[Batch], run_input: ScheduleInput, *, training: bool
    ) -> None:
        """Run the schedule once over ``micro_batches`` (``run_input`` comes without batches)."""
        root = handle.root
        assert isinstance(root, PipelineRoot)
        packed = root.stages[0].attention.layout == "packed"
        local_batches = [self.strategy.shard_batch(batch) for batch in micro_batches]
        # One shape for all, and as many micro-batches as the schedule supports.
        shape = FixedShape.of(local_batches, packed, MULTIPLE * self.mesh.tp)
        number = self.strategy.stage_layout.micro_batches(len(local_batches))
        fitted = [shape.fit(batch) for batch in local_batches] + [shape.empty(local_batches[0])] * (
            number - len(local_batches)
        )
        running = self._running(handle.role, root, shape, number, training)
        root.give(replace(run_input, batches=fitted))
        try:
            running.run(torch.cat([token_ids(batch, packed) for batch in fitted]), training=training)
        finally:
            root.give(None)

    def _running(
        self, role: Role, root: PipelineRoot, shape: FixedShape, number: int, training: bool
    ) -> Running:
        """Return the schedule for this shape: the last one, or a new one."""
        last, running = self._schedules.get((role, training), (None, None))
        if running is None or last != (shape, number):
            stage, strategy = root.stages[0], self.strategy
            width = stage.hf.config.get_text_config().hidden_size
            wire = StageTensorSpec(
                width, stage.boundary_dtype, self.mesh.tp if strategy.how.sequence_parallel else 1
            )
            running = Running(
                strategy.stage_layout, root.by_index, shape, number, wire, strategy.row, self.world.device
            )
            self._schedules[role, training] = (shape, number), running
        return running

    def _evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """Run forwards only, some micro-batches at a time; the last stage broadcasts the names of its sums to
        all ranks.
        """
        batches, stage_layout = iter(micro_batches), self.strategy.stage_layout
        while chunk := list(islice(batches, _EVAL_MICRO_BATCHES_A_RANK * stage_layout.ranks)):
            for role in algorithm.trains:

                def finish(outputs: dict[str, Tensor], batch: Batch, role: Role = role) -> Tensor:
                    self._add_evaluation(algorithm, role, outputs, batch, sums)
                    # The schedule wants a loss; the sums were added above.
                    return torch.zeros((), device=batch.input_ids.device)

                run_input = ScheduleInput((), algorithm.required_outputs(role, training=False), finish)
                self._run(handles[role], chunk, run_input, training=False)
            yield from chunk
        for role in algorithm.trains:
            self._schedules.pop((role, False), None)  # it holds buffers for its micro-batches' hidden states
        # A rank of the world: pp is the mesh's outermost axis, so a pipeline rank's first member is at a
        # multiple of the size of a stage.
        holder = stage_layout.rank_of(stage_layout.count - 1) * (self.world.world_size // stage_layout.ranks)
        for name in self.world.broadcast_json(sorted(sums), src=holder):
            sums.setdefault(
                name, torch.zeros((), dtype=sum_dtype(self.world.device), device=self.world.device)
            )


class Pipeline(FSDP):
    """``torch.distributed.pipelining`` over the mesh's ``pp`` axis; each stage may be replicated
    (``dp_replicate``), sharded (``dp_shard``) or tensor-parallel (``tp``).

    All ranks of a pipeline read the same rows. The micro-batches of a window are padded to one shape, as
    stages must know what they receive; the padding has weight 0. A stage's parameters stay gathered from a
    window's first forward to its last backward, and gradients are summed over the data-parallel ranks once
    per window.
    """

    runner = PipelineRunner
    can_generate = False

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        if plan.mesh.cp > 1:
            raise ConfigError(codes.STRATEGY_PIPELINE_CP("training.parallelism.cp_size", str(plan.mesh.cp)))
        engine = plan.engine if isinstance(plan.engine, PipelineOptions) else PipelineOptions()
        self.stage_layout = StageLayout(engine.schedule, plan.mesh.pp, engine.stages_per_rank)
        self.place_in_row = plan.mesh.coordinates(world.rank).pp
        # A stage runs many micro-batches before its first backward: gathering it for each would cost more
        # than it frees.
        self.how = replace(engine.fsdp, reshard_after_forward=False)
        self._as_tuple: bool | None = None  # how stages are cut, found before there are weights
        self.collective_forward = self.sharding  # without sharding, a forward involves no other pipeline

    @property
    def sharding(self) -> bool:
        """Whether a stage's parameters are sharded (DTensors), or whole."""
        return self.plan.mesh.dp_shard > 1 or self.plan.mesh.tp > 1

    # --- life of a model

    def _build(self, build: ModelFactory) -> RootModule:
        """Build the model on meta: each rank fills its own stages later. Where the class cannot be tried at a
        small size, every rank builds the whole on its host, and tries that. Without low-precision copies:
        each stage makes those of its own layers.
        """
        options = BuildOptions(device=torch.device("cpu"), fused=self.plan.mesh.tp == 1, engine_casts=True)
        self._as_tuple, why = None, ""
        if self.how.meta_start:
            root, self._source = build_on_meta(build, options, self.world)
            assert isinstance(root, RoleModule), "a pipeline can only split Hugging Face models"
            self._as_tuple = small_layers_pass_tuples(root, self.stage_layout.count)
            if self._as_tuple is not None:
                return root
            self._source, why = None, "its class could not be tried at a small size"
        full = build(options)
        if why:
            full.note("start", f"every rank reads the whole model: {why}")
        return full

    def _shard(self, role: Role, root: RootModule) -> PipelineHandle:
        """Keep this rank's stages of ``root``; free the rest."""
        assert isinstance(root, RoleModule), "a pipeline can only split Hugging Face models"
        layout, on_meta = self.stage_layout, self._as_tuple is not None
        stages = split(root, layout.count, layout.own(self.place_in_row), self._as_tuple)
        if self.plan.mesh.tp > 1:
            how = self.how
            apply_tensor_parallel(
                root,
                self.mesh["tp"],
                sequence_parallel=how.sequence_parallel,
                loss_parallel=how.loss_parallel,
            )
        parts = PipelineRoot(stages)
        parts.slices = root.slices
        # Where the class was tried on whole weights, they are on the host already.
        if not on_meta:
            parts = parts.to(self.world.device)
        if not self.sharding and on_meta:
            self._fill(parts)
        for stage in stages:
            # FSDP2 casts what it gathers; whole parameters need copies of their own.
            stage.lower_precision(copies=not self.sharding)
        units = self._shard_stages(parts) if self.sharding else None
        # Sharded first: a rank never holds its whole stages.
        if self.sharding and on_meta:
            self._fill(parts)
        if units is not None:
            units.start()
        mesh, rank = self.plan.mesh, self.world.rank
        blocks = blocks_of if self.sharding else whole_blocks
        # the last stage's copy of a tied weight, if it is here
        second = [(name, p) for name, p in parts.plain_named_parameters() if p is parts.tied_copy]
        copies, shards = (
            blocks(parameters, mesh, rank) for parameters in (second, parts.own_named_parameters())
        )
        # NCCL requires a collective on a group before point-to-point sends
        dist.all_reduce(torch.ones(1, device=self.world.device), group=self.row)
        return PipelineHandle(role, parts, parts, blocks=shards, copies=copies, units=units)

    @property
    def row(self) -> dist.ProcessGroup:
        """The process group of the ranks that have the stages of one copy of the model."""
        return self.mesh["pp"].get_group()

    def _fill(self, parts: PipelineRoot) -> None:
        """Give these stages, which are on meta, their values."""
        device = torch.device("cpu") if self.how.cpu_offload else self.world.device
        fill(parts, self._source, self.world, device, tensors=_whole_tensors(parts))
        self._source = None

    def _shard_stages(self, parts: PipelineRoot) -> Units:
        """Apply FSDP2 inside every stage."""
        over = sharding_mesh(self.mesh)
        stage_units = [
            shard(scheduled, stage.hf.base_model, over, self.how, self.dtypes)
            for scheduled, stage in zip(parts.scheduled, parts.stages, strict=True)
        ]
        return Units(stage_units[0].root, [unit for units in stage_units for unit in units.all()][1:])

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load this rank's shards; both holders of a tied weight load the same values."""
        assert isinstance(handle, PipelineHandle)
        state.import_state(replace(handle, blocks=[*handle.blocks, *handle.copies], copies=[]), reader)

    def shard_batch(self, batch: Batch) -> Batch:
        """Return the whole micro-batch: all ranks of a pipeline read the same tokens."""
        return batch.to(self.world.device)


def _whole_tensors(parts: PipelineRoot) -> Iterator[tuple[str, Tensor]]:
    """Yield the stages' tensors under the names that they have in the whole; the copy of a tied weight under
    that of the first.
    """
    for stage in parts.stages:
        # Files and checkpoints hold a tied weight once, under the embedding's name.
        copy = stage.hf.get_output_embeddings().weight if stage.last and stage.tied_name else None
        for name, tensor in tensors_of(stage):
            yield (f"hf.{stage.tied_name}" if tensor is copy else name), tensor
