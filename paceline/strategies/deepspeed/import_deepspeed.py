"""The import of DeepSpeed, and the guards around it; no other file imports the package itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
import warnings
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.launch.environment.deepspeed_build_locks import await_build
from paceline.launch.environment.guide_variables import set_defaults
from paceline.models.module_tensors import replaced
from paceline.runtime.process_group.world import World, environment
from paceline.strategies import codes

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine_types import Accelerator

INSTALL = "pip install 'paceline[deepspeed]'"


def library(world: World) -> ModuleType:
    """Return the ``deepspeed`` package, with its environment variables set for this device and rank.

    Raises ConfigError ``strategy.deepspeed_missing``, ``strategy.deepspeed_broken`` or
    ``strategy.deepspeed_accelerator``.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(codes.STRATEGY_DEEPSPEED_MISSING("training.distributed_strategy", install=INSTALL))
    # DeepSpeed reads these at import; a launcher of its own would have set them.
    set_defaults(
        {
            "DS_ACCELERATOR": world.device.type,
            "RANK": str(world.rank),
            "LOCAL_RANK": str(world.local_rank),
            "WORLD_SIZE": str(world.world_size),
            "MASTER_ADDR": world.env.master_addr,
            "MASTER_PORT": str(world.env.master_port),
        }
    )
    try:
        import deepspeed
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_BROKEN(
                "training.distributed_strategy",
                f"{type(error).__name__}: {error}",
                version=importlib.metadata.version("deepspeed"),
                hint=INSTALL,
            )
        ) from error
    _check_accelerator(deepspeed, world)
    # DeepSpeed uses deprecated names of torch's functions, which would warn at every step
    warnings.filterwarnings(
        "ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning
    )
    package: ModuleType = deepspeed
    return package


def without_shared_memory_op() -> AbstractContextManager[None]:
    """Inside the context, DeepSpeed's start on a CPU compiles nothing.

    Only ``inference_all_reduce`` uses its shared-memory op, but every start would build it (a C++ compiler,
    ninja and a minute). The stale lock of a killed build makes all later starts hang. Without the op that
    call is torch's all-reduce.
    """
    from deepspeed import comm  # noqa: F401 - brings the module below into sys.modules

    return replaced(sys.modules["deepspeed.comm.torch"], build_shm_op=lambda: None)


def need_async_io(world: World) -> None:
    """Build or load the op for NVMe offload, rank 0 of each node first (concurrent builds corrupt each
    other). Collective.

    Raises ConfigError ``strategy.deepspeed_async_io`` on every rank if a library or a compiler is missing on
    any.
    """
    from deepspeed.accelerator import get_accelerator

    problem = ""
    # Rank 0 of each node first, then the others, which load what it has built.
    for turn in (True, False):
        if (world.local_rank == 0) == turn and not problem:
            problem = load_async_io(get_accelerator())
        if world.any(bool(problem)):
            break
    if world.any(bool(problem)):
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_ASYNC_IO(
                "zero_optimization.offload_optimizer.device", problem or "on another rank"
            )
        )


def load_async_io(accelerator: Accelerator) -> str:
    """Load the op; return why it cannot be loaded, or ""."""
    missing = [tool for tool in ("ninja", "g++") if shutil.which(tool) is None]
    if missing and not (missing == ["ninja"] and importlib.util.find_spec("ninja")):
        return f"not found: {', '.join(missing)}"
    builder = accelerator.create_op_builder("AsyncIOBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return "libaio (its header and library) is not installed"
    # Another process may be building it; then load, which builds if necessary.
    if waiting := await_build(environment()):
        return waiting
    try:
        builder.load(verbose=False)
    except (RuntimeError, ImportError, OSError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
    return ""


def _check_accelerator(deepspeed: ModuleType, world: World) -> None:
    """Check the device type that DeepSpeed chose at its first import, which may have happened before ours.
    Raises ConfigError.
    """
    device_type = deepspeed.accelerator.get_accelerator().device_name()
    if device_type != world.device.type:
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_ACCELERATOR("DS_ACCELERATOR", str(device_type), type=world.device.type)
        )
