"""State of whole (replicated) parameters as shards under plain names, and back, bit for bit; read once for
all ranks that hold it alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.core.errors import CheckpointError
from paceline.protocols.shard import BUFFER, PARAM, Shard, ShardReader
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.model_handle import Handle
from paceline.strategies.optimizers import quantized_state, schedule_free
from paceline.strategies.optimizers.adam_mini import AdamMini
from paceline.strategies.optimizers.galore_adamw import GaLoreAdamW
from paceline.strategies.optimizers.muon import MuonWithAdamW

#: Optimizers whose moments have the dtype of the weights; others keep fp32, or packed ones
_TORCHS = (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop)
LIKE_WEIGHTS = (*_TORCHS, MuonWithAdamW, GaLoreAdamW, AdamMini)  # and APOLLO, a GaLoreAdamW
SCALER = "grad_scaler"  # name of the fp16 scaler's two values in a checkpoint; no parameter has it
_EVERY_RANK: Mapping[str, int] = {}  # no moments are kept by one rank alone
# optimizer states that are Python numbers
_NUMBERS = {".int": (int, torch.int64), ".float": (float, torch.float64)}


def export_state(
    handle: Handle, rank: int, world_size: int, keepers: Mapping[str, int] = _EVERY_RANK
) -> Iterator[Shard]:
    """Yield the shards that rank ``rank`` saves: whole tensors, divided so that every rank saves about the
    same number of bytes.

    A parameter and its moments stay together. Tensors are not copied: save them before the next step.
    ``keepers``: parameter → the only rank that has its moments, and that saves both.
    """
    states, parameters = _states(handle), dict(handle.root.plain_named_parameters())
    # all ranks must compute the same assignment: do not count moments that one rank alone has
    # Names and sizes are the same on every rank, so no message is needed to divide the work.
    sizes = {
        name: kinds[PARAM].nbytes if name in keepers else sum(t.nbytes for t in kinds.values())
        for name, kinds in states.items()
    }
    owner = assign(sizes, world_size, keepers)
    for name, kinds in states.items():
        if owner[name] != rank:
            continue
        for kind, held in kinds.items():
            tensor = weights_of(handle.optimizer, parameters[name]) if kind == PARAM else held
            yield Shard(
                handle.role.value, name, kind, tuple(tensor.shape), (0,) * tensor.ndim, tensor.detach()
            )


def assign(sizes: dict[str, int], world_size: int, given: Mapping[str, int] = _EVERY_RANK) -> dict[str, int]:
    """Return name → rank: as ``given``, and the others, largest first, to the rank with the least bytes so
    far (ties: the lowest rank).

    The same on every rank.
    """
    # Greedy, longest first: close to an even division, and the same on every rank.
    load = [0] * world_size
    owner = dict(given)
    for name, rank in given.items():
        load[rank] += sizes[name]
    # the name breaks ties: every rank must come to the same assignment
    for name in sorted(sizes.keys() - given.keys(), key=lambda n: (-sizes[n], n)):
        rank = load.index(min(load))
        owner[name] = rank
        load[rank] += sizes[name]
    return owner


def import_state(
    handle: Handle,
    reader: ShardReader,
    rank: int = 0,
    keepers: Mapping[str, int] = _EVERY_RANK,
    of_moments: ShardReader | None = None,
) -> None:
    """Load parameters, buffers, optimizer moments and the scaler. Raises CheckpointError if a tensor is
    missing or has another shape.

    A checkpoint without moments (weights only) leaves the optimizer unchanged. Moments kept by another rank
    than ``rank`` (``keepers``) are not read. ``of_moments``: a reader of moments that one rank reads alone.
    """
    role = handle.role.value
    with torch.no_grad():
        for name, parameter in handle.root.plain_named_parameters():
            _read_into(parameter, reader, role, name, PARAM)
            # ``param`` is the average (see ``weights_of``): training goes on from the weights ``y``.
            schedule_free.read_trained(handle.optimizer, reader, role, name, (0,) * parameter.ndim, parameter)
            if handle.optimizer is not None and parameter.requires_grad and keepers.get(name, rank) == rank:
                import_moments(handle.optimizer, parameter, of_moments or reader, role, name)
    import_beside_parameters(handle, reader)
    handle.root.refresh_compute_weights()


@torch.no_grad()
def import_beside_parameters(handle: Handle, reader: ShardReader) -> None:
    """Load buffers and the scaler."""
    role = handle.role.value
    for name, buffer in handle.root.plain_named_buffers():
        _read_into(buffer, reader, role, name, BUFFER)
    if handle.scaler is not None and reader.has(role, SCALER, "scale"):
        scale, tracker = reader.read(role, SCALER, "scale"), reader.read(role, SCALER, "growth_tracker")
        handle.scaler.load_state_dict(
            {**handle.scaler.state_dict(), "scale": float(scale), "_growth_tracker": int(tracker)}
        )


def _states(handle: Handle) -> dict[str, dict[str, Tensor]]:
    """Return name → kind → tensor of this model's whole state."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, parameter in handle.root.plain_named_parameters():
        states[name] = {PARAM: parameter.data}
        if handle.optimizer is not None:
            states[name] |= saved_moments(handle.optimizer, parameter, (0,) * parameter.ndim)
    return states | beside_parameters(handle)


def beside_parameters(handle: Handle) -> dict[str, dict[str, Tensor]]:
    """Return name → kind → tensor of buffers and the scaler."""
    states: dict[str, dict[str, Tensor]] = {
        name: {BUFFER: buffer} for name, buffer in handle.root.plain_named_buffers()
    }
    if handle.scaler is not None:
        # Two of its five values change in a run; the other three are constants.
        scaler = handle.scaler.state_dict()
        states[SCALER] = {
            "scale": torch.tensor(scaler["scale"], dtype=torch.float32),
            "growth_tracker": torch.tensor(scaler["_growth_tracker"]),
        }
    return states


def weights_of(optimizer: torch.optim.Optimizer | None, parameter: nn.Parameter) -> Tensor:
    """Return the weights that a checkpoint holds as ``param``: the averaged ones where there are any."""
    average = schedule_free.average_of(optimizer, parameter)
    return parameter.detach() if average is None else average


def saved_moments(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, offsets: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return the optimizer's state of ``parameter``, the shard at ``offsets`` of its tensor, by kind."""
    state, codec = optimizer.state.get(parameter, {}), quantized_state.codec_of(optimizer)
    if not state:
        return {}
    if schedule_free.has_average(optimizer, parameter):
        numbers = schedule_free.numbers_of(optimizer, parameter)
        return {schedule_free.Y: parameter.detach(), **moments({**state, **numbers})}
    if codec is None:
        return moments(state)
    of_shards = quantized_state.shard_parts(codec, state, offsets, tuple(parameter.shape))
    return of_shards | moments({"step": state["step"]})


def moments(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return an optimizer's state of one parameter as tensors; Python numbers become scalars with a suffix in
    their kind (``step.int``).
    """
    tensors: dict[str, Tensor] = {}
    for kind, value in state.items():
        if isinstance(value, Tensor):
            tensors[kind] = value
        for suffix, (of, dtype) in _NUMBERS.items():
            # Not ``isinstance``: a bool is an int, and must not become a number.
            if type(value) is of:
                tensors[kind + suffix] = torch.tensor(value, dtype=dtype)
    return tensors


def import_moments(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, reader: ShardReader, role: str, name: str
) -> None:
    if import_quantised(optimizer, parameter, (0,) * parameter.ndim, reader, role, name):
        return
    kinds = [k for k in reader.kinds(role, name) if k not in (PARAM, BUFFER, schedule_free.Y)]
    if kinds:
        read = {kind: reader.read(role, name, kind) for kind in kinds}
        optimizer.state[parameter] = moments_from(optimizer, parameter, read)


def import_quantised(
    optimizer: torch.optim.Optimizer,
    parameter: nn.Parameter,
    offsets: tuple[int, ...],
    reader: ShardReader,
    role: str,
    name: str,
) -> bool:
    """Load the state of an optimizer with quantised moments; return False for any other optimizer."""
    codec = quantized_state.codec_of(optimizer)
    if codec is None:
        return False
    read = quantized_state.read_state(codec, parameter, offsets, reader, role, name)
    if read is not None:
        steps = [k for k in reader.kinds(role, name) if k.partition(".")[0] == "step"]
        counters = {kind: reader.read(role, name, kind) for kind in steps}
        optimizer.state[parameter] = {**read, **moments_from(optimizer, parameter, counters)}
    return True


def moments_from(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, read: Mapping[str, Tensor]
) -> dict[str, Tensor | float]:
    """Return the optimizer's state of ``parameter`` from the tensors of ``moments``, in the dtype that the
    optimizer keeps. A run with weights in another dtype may have saved them.
    """
    dtype = parameter.dtype if isinstance(optimizer, LIKE_WEIGHTS) else None
    state: dict[str, Tensor | float] = {}
    for kind, value in read.items():
        suffix = next((s for s in _NUMBERS if kind.endswith(s)), None)
        if suffix is not None:
            state[kind.removesuffix(suffix)] = _NUMBERS[suffix][0](value)
            continue
        # A fused kernel reads the counter on the device. Others read it on the host, where that waits for
        # nothing.
        on_device = kind != "step" or counts_on_device(optimizer, parameter)
        kept_dtype = dtype if value.ndim and value.is_floating_point() else None
        state[kind] = value.to(parameter.device if on_device else "cpu", kept_dtype or value.dtype, copy=True)
    schedule_free.take_numbers(optimizer, parameter, state)
    return state


def counts_on_device(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    """Whether torch keeps the counter ``step`` next to ``parameter``, where a fused or capturable kernel
    reads it, and not on the host.
    """
    groups = optimizer.param_groups
    of_parameter = [g for g in groups if any(p is parameter for p in g["params"])]
    return any(
        g.get("fused") or g.get("capturable") for g in of_parameter or groups
    )  # ZeRO-3 has its own outside them


def _read_into(target: Tensor, reader: ShardReader, role: str, name: str, kind: str) -> None:
    check(reader, role, name, kind, tuple(target.shape))
    target.copy_(reader.read(role, name, kind))


def check(reader: ShardReader, role: str, name: str, kind: str, shape: tuple[int, ...]) -> None:
    """Raise CheckpointError if the tensor is missing or has another shape than the model's ``shape``."""
    if not reader.has(role, name, kind):
        raise CheckpointError(
            codes.CHECKPOINT_MISSING_TENSOR(
                f"the checkpoint has no '{name}' ({kind}) for the {role}",
                found=name,
                hint="use the model that was saved",
            )
        )
    stored = reader.shape(role, name, kind)
    if stored != shape:
        raise CheckpointError(
            codes.CHECKPOINT_SHAPE(
                f"'{name}' has another shape in the checkpoint",
                found=f"{stored}, but the model has {shape}",
                hint="use the model (and vocabulary) that was saved",
            )
        )


class ReadOnce:
    """A ShardReader of ranks that make the same calls in the same order: all, or those of ``group``.

    They take turns with reading, so a checkpoint is read once for all of them. Collective.
    """

    def __init__(self, reader: ShardReader, world: World, group: dist.ProcessGroup | None = None) -> None:
        self._reader = reader
        self._world = world
        self._group = group
        self._ranks = list(range(world.world_size)) if group is None else dist.get_process_group_ranks(group)
        self._turn = 0

    def has(self, role: str, name: str, kind: str) -> bool:
        return self._reader.has(role, name, kind)

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        return self._reader.kinds(role, name)

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        return self._reader.shape(role, name, kind)

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype:
        return self._reader.dtype(role, name, kind)

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """Return the whole tensor on the CPU."""
        shape = self.shape(role, name, kind)
        return self.read_block(role, name, kind, (0,) * len(shape), shape)

    def read_block(
        self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]
    ) -> Tensor:
        """Return the block of ``shape`` at ``offsets``, on the CPU."""
        # Ranks take turns, so that each reads about 1/n of the tensors. All make the same calls in the same
        # order, hence agree on whose turn it is.
        source = self._ranks[self._turn % len(self._ranks)]
        self._turn += 1
        if source == self._world.rank:
            tensor = self._reader.read_block(role, name, kind, offsets, shape).contiguous()
        else:
            # The dtype stands in the checkpoint's index, so receivers need no message about it.
            tensor = torch.empty(shape, dtype=self.dtype(role, name, kind))
        return self._world.send_tensor(tensor, source, self._group)
