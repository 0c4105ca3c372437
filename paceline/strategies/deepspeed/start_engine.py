"""Start a DeepSpeed engine, and check that it is what the config says.

The configuration passed to DeepSpeed: the plan's, without everything that is owned elsewhere.

Each of these has one owner, whatever a user's JSON says:

* the schedule: Paceline (``lr`` is an argument of every window); DeepSpeed gets no scheduler
* the optimizer: the plan's torch optimizer, passed as a client optimizer; DeepSpeed partitions its state
* clipping: the value passed to every window. ZeRO-1/2/3 clip inside their step, by torch's own formula (``1 /
  max(1, (norm + 1e-6) / max)``), as only they see all partitions. At stage 0 DeepSpeed's own clipping is not
  used (in low precision it is wrong); gradients are whole and clipped as under DDP
* precision: DeepSpeed from stage 1 on (low-precision parameters, fp32 partitions of the masters). At stage 0
  its bf16 optimizer drifts (a loss difference of 1.6e-2 after ten steps), so parameters stay fp32 and the
  model uses its own low-precision copies
* the loss: summed and weighted by Paceline; neither accumulation nor the data-parallel mean may silently
  rescale it
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.models.module_tensors import replaced
from paceline.plan.plan import Plan
from paceline.plan.strategies.deepspeed.zero_block import whole
from paceline.plan.strategy_options import DeepSpeedOptions
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
    # Before anything collective: a refusal must come from every rank at once.
    check_packed(root, config)
    deepspeed = opened(world, config)
    cut = whole(as_object(config.get("tensor_parallel")), "autotp_size", 1) > 1
    stage = whole(as_object(config.get("zero_optimization")), "stage", 0)
    # AutoTP cuts layers inside ``initialize``; values before that would be of the uncut shapes.
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
        # It also returns the optimizer, a data loader and a scheduler: the first is the engine's, the
        # others are none.
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

    # A module with globals: a second ``initialize`` asserts that there are none yet.
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
    # All of these are silent in DeepSpeed: it trains, with other numbers.
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
    # ``ds_tensor`` is a rank's partition; without it the parameter is whole everywhere.
    full = [n for n, p in engine.module.named_parameters() if not hasattr(p, "ds_tensor")]
    return [f"{len(full)} parameters are not partitioned ({full[0]}, …)"] if full else []


_OWNED = ("optimizer", "scheduler", "gradient_clipping", "train_batch_size")
_ULYSSES = ("sequence_parallel_size", "data_parallel_size")  # ZeRO would not reduce over Ulysses ranks
_PRECISION = ("bf16", "bfloat16", "fp16", "torch_autocast", "data_types")
_HEAD = ("vocab_parallel_lm_head", "vocab_parallel_ce_backend")  # of tensor_parallel: the loss is ours


def options_of(plan: Plan) -> DeepSpeedOptions:
    """Return DeepSpeed's options in the plan; the defaults for a subclass from outside, whose options the
    plan does not know.
    """
    return plan.engine if isinstance(plan.engine, DeepSpeedOptions) else DeepSpeedOptions()


def engine_config(plan: Plan, role: str = "") -> JsonObject:
    """Return a new config for ``deepspeed.initialize`` of the model of ``role``.

    Raises ConfigError ``strategy.deepspeed_float64`` for float64 masters, which no ZeRO stage supports.
    """
    stage = options_of(plan).zero_stage
    if stage and plan.precision.master == "float64":
        raise ConfigError(codes.STRATEGY_DEEPSPEED_FLOAT64("model.dtype", "float64", stage=stage))
    # Drop what Paceline owns (see above), then set what its arithmetic relies on.
    # A copy: the plan, whose config this is, is saved with the run as it was made.
    config: JsonObject = copy.deepcopy(dict(options_of(plan).config or minimal(plan)))
    for key in (*_OWNED, *_ULYSSES, *(() if stage else _PRECISION)):
        config.pop(key, None)
    for key in _HEAD:
        as_object(config.get("tensor_parallel")).pop(key, None)
    # The window's own value is set on the optimizer before each step (``DeepSpeed.finish``).
    config["gradient_clipping"] = 0.0
    zero = as_object(config.get("zero_optimization"))
    if stage == 3 and plan.mesh.cp > 1:  # without it, the divisor is another number of ranks
        config["zero_optimization"] = zero = {**zero, "reduce_scatter": True}
    _own_drive_folders(zero, plan.run_dir, role)
    config["zero_allow_untested_optimizer"] = True  # ``check_optimizer`` refuses what cannot be partitioned
    # torch's fused AdamW runs on the CPU as well, and resumes bit for bit
    config["zero_force_ds_cpu_optimizer"] = False
    return config


def asking_config(plan: Plan, role: str) -> JsonObject:
    """Return the config for a frozen model, whose weights ZeRO-3 partitions."""
    config = engine_config(plan, role)
    as_object(config.get("zero_optimization")).pop("offload_optimizer", None)
    return config


def _own_drive_folders(zero: JsonObject, run_dir: str, role: str) -> None:
    """Give this model a separate folder for NVMe offload, in place.

    DeepSpeed names its files by rank and parameter only, and empties the folder at the start. Two runs (and
    two models of a run) would overwrite each other's files.
    """
    run_folder = f"paceline-{hashlib.sha256(run_dir.encode()).hexdigest()[:12]}"
    for name in ("offload_optimizer", "offload_param"):
        block = as_object(zero.get(name))
        if block.get("device") == "nvme":
            nvme_path = block.get("nvme_path")
            block["nvme_path"] = str(
                (Path(str(nvme_path)) / run_folder if nvme_path else Path(run_dir) / "nvme") / role
            )


def minimal(plan: Plan) -> JsonObject:
    """Return the config for the plan's stage, batch and precision if no JSON was compiled."""
    config: JsonObject = {
        "train_micro_batch_size_per_gpu": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.accumulation,
        "zero_optimization": zero_section(options_of(plan)),
        **({plan.precision.half: {"enabled": True}} if plan.precision.half else {}),
    }
    if plan.mesh.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.mesh.tp}
    return config


def zero_section(engine: DeepSpeedOptions) -> JsonObject:
    """Return ``zero_optimization`` for the stage and the offload devices of ``engine``."""
    section: JsonObject = {"stage": engine.zero_stage}
    for name, device in zip(("offload_optimizer", "offload_param"), engine.places, strict=True):
        if device != "none":
            section[name] = {"device": device}
    return section


def averages_gradients(config: Mapping[str, Json]) -> bool:
    """Return whether DeepSpeed averages gradients instead of summing them (``gradient_allreduce_op``)."""
    return str(config.get("gradient_allreduce_op", "mean")).lower() != "sum"
