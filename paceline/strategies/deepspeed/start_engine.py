"""Start a DeepSpeed engine, and check that it is what the config says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.models.module_tensors import replaced
from paceline.plan.strategies.deepspeed.zero_block import whole
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.deepspeed.autotp import unsharded
from paceline.strategies.deepspeed.import_deepspeed import library, need_async_io, without_shared_memory_op
from paceline.strategies.deepspeed.partition_views import is_managed
from paceline.strategies.deepspeed.zero3 import hooks_without_gathering

if TYPE_CHECKING:
    from paceline.protocols.model import RootModule
    from paceline.strategies.deepspeed.engine_types import Engine, TensorParallelState

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def start_engine(
    world: World,
    config: JsonObject,
    root: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sequence_parallel: int = 1,
    fill: Callable[[], None] | None = None,
) -> Engine:
    """Call ``deepspeed.initialize`` with ``root`` and a torch optimizer over its trained parameters (None:
    frozen). Collective.

    ``sequence_parallel``: the number of ranks that share each sequence (Ulysses); ZeRO partitions and
    averages over them as well. ``fill`` gives ``root`` its values: before the engine, or when
    AutoTP has cut its layers.

    Raises ConfigError with DeepSpeed's own message for what it refuses, and PacelineError
    ``strategy.deepspeed_trap`` if it started something else than ``config`` says.
    """
    check_packed(root, config)
    deepspeed = opened(world, config)
    cut = whole(as_object(config.get("tensor_parallel")), "autotp_size", 1) > 1
    stage = whole(as_object(config.get("zero_optimization")), "stage", 0)
    if fill is not None and not cut:
        fill()
    with (
        refusals(),
        without_shared_memory_op(),
        _calling(deepspeed, fill if cut else None),
        hooks_without_gathering() if stage == 3 else nullcontext(),
    ):
        managed = any(map(is_managed, root.parameters()))
        if offload_devices(config)["offload_param"] == "nvme" and not managed:
            _partition_onto_drive(deepspeed, root, config)
        engine: Engine
        engine, *_ = deepspeed.initialize(
            model=root,
            optimizer=optimizer,
            model_parameters=[p for p in root.parameters() if p.requires_grad] or None,
            config=config,
            mpu=sequence_groups(sequence_parallel),
            dist_init_required=None,
        )
    check_engine(engine, config, world, sequence_parallel)
    return engine


def _calling(
    deepspeed: ModuleType, after_sharding: Callable[[], None] | None
) -> AbstractContextManager[None]:
    """Inside the context an engine calls ``after_sharding`` between AutoTP and the move to its device, for
    which it has no hook.
    """
    kind: type[Engine] = deepspeed.DeepSpeedEngine
    configure = kind._configure_tensor_parallel

    def and_call(engine: Engine, model: RootModule, settings: TensorParallelState) -> TensorParallelState:
        replaced = configure(engine, model, settings)
        if after_sharding is not None:
            after_sharding()
        return replaced

    return replaced(kind, _configure_tensor_parallel=and_call)


def opened(world: World, config: JsonObject) -> ModuleType:
    """Return the package with what must exist before an engine: the NVMe op and the process group.
    Collective.
    """
    world.require_group()
    deepspeed = library(world)
    if "nvme" in offload_devices(config).values():
        need_async_io(world)
    with without_shared_memory_op():
        # None: torch's process group is there already, and is taken
        deepspeed.init_distributed(dist_init_required=None)
    return deepspeed


@contextmanager
def refusals() -> Iterator[None]:
    """Inside the context, what DeepSpeed refuses is a ConfigError with its message."""
    try:
        yield
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_REFUSED(
                "training.deepspeed", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            )
        ) from error


def engine_dtype(config: Mapping[str, Json]) -> torch.dtype | None:
    """Return the 16-bit dtype of the weights that ``config`` trains; None: fp32."""
    return next((d for key, d in _LOW.items() if as_object(config.get(key)).get("enabled")), None)


def check_packed(root: nn.Module, config: Mapping[str, Json]) -> None:
    """Raise ConfigError if DeepSpeed's cast to low precision would convert packed 4-bit weights as if they
    were numbers (it skips integers only).
    """
    packed = [
        n for n, p in root.named_parameters() if type(p).__name__ == "Params4bit" and p.is_floating_point()
    ]
    if packed and engine_dtype(config) is not None:
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_PACKED(
                "lora.quantization_bit", f"{len(packed)} weights ({packed[0]}, …)"
            )
        )


def _partition_onto_drive(deepspeed: ModuleType, root: nn.Module, config: JsonObject) -> None:
    """Partition the parameters before the engine does, which would write them to NVMe in another dtype.

    DeepSpeed 0.19's ``Init._set_dtype`` returns ``dtype or float16 if fp16 is supported else bfloat16``: on a
    processor without float16 the engine's own float32 becomes bfloat16. Weights lose their lower half on the
    way to NVMe. Without a dtype it uses the config's.
    """
    low = engine_dtype(config)
    for parameter in root.parameters():
        if low is not None and parameter.is_floating_point():
            parameter.data = parameter.data.to(low)
    deepspeed.zero.Init(module=root, config_dict_or_path=config)


def sequence_groups(size: int) -> ModuleType | None:
    """Return DeepSpeed's Ulysses groups, created once per process; None without sequence parallelism.

    The alternative, ``sequence_parallel_size`` in the JSON, creates the same groups but then partitions and
    averages over the data-parallel ranks only. The ranks of a sequence silently diverge.
    """
    if size == 1:
        return None
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    groups: ModuleType = parallel_state_sp
    if groups._SEQUENCE_PARALLEL_GROUP is None:
        groups.initialize_sequence_parallel(size)
    return groups


def offload_devices(config: Mapping[str, Json]) -> dict[str, str]:
    """Return the devices of ``offload_optimizer`` and ``offload_param``: ``none``, ``cpu`` or ``nvme``."""
    zero = as_object(config.get("zero_optimization"))
    return {
        name: str(as_object(zero.get(name)).get("device") or "none")
        for name in ("offload_optimizer", "offload_param")
    }


def check_engine(
    engine: Engine, config: Mapping[str, Json], world: World, sequence_parallel: int = 1
) -> None:
    """Raise PacelineError ``strategy.deepspeed_trap`` if the engine silently differs from the config."""
    stage = whole(as_object(config.get("zero_optimization")), "stage", 0)
    tp = whole(as_object(config.get("tensor_parallel")), "autotp_size", 1)
    # Collect every difference, then raise once.
    wrong: list[str] = []
    if int(engine.zero_optimization_stage()) != stage:
        wrong.append(f"ZeRO stage {int(engine.zero_optimization_stage())} instead of {stage}")
    if max(int(engine.autotp_size() or 1), 1) != tp:
        wrong.append(f"AutoTP over {engine.autotp_size()} ranks instead of {tp}")
    if engine.global_rank != world.rank or engine.world_size != world.world_size:
        wrong.append(
            f"rank {engine.global_rank} of {engine.world_size} instead of {world.rank} of {world.world_size}"
        )
    if int(engine.seq_dp_world_size) != world.world_size // tp:
        wrong.append(
            f"gradients are averaged over {engine.seq_dp_world_size} ranks instead of"
            f" {world.world_size // tp}"
        )
    if engine.sequence_parallel_size != sequence_parallel:
        wrong.append(
            f"sequences are sharded over {engine.sequence_parallel_size} ranks instead of {sequence_parallel}"
        )
    if stage == 3:
        wrong += _whole_parameters(engine, world)
    if tp > 1:
        wrong += unsharded(engine.module)
        check = getattr(engine, "first_dataloader_check", None)
        if check is not None:  # it broadcasts pickled batches once; Paceline compares checksums of ids
            check.remove()
    if wrong:
        raise PacelineError(codes.STRATEGY_DEEPSPEED_TRAP("training.deepspeed", "; ".join(wrong)))


def _whole_parameters(engine: Engine, world: World) -> list[str]:
    """Return a problem if ZeRO-3 has left parameters unpartitioned."""
    if world.world_size == 1:
        return []
    full = [n for n, p in engine.module.named_parameters() if not hasattr(p, "ds_tensor")]
    return [f"{len(full)} parameters are not partitioned ({full[0]}, …)"] if full else []
