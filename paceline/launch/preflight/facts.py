"""Facts about this machine and the run directory, for the config's rules."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.files import listed
from paceline.core.rundir import RunDir
from paceline.launch.environment.job_managers import outside_srun, started_by
from paceline.plan.cost.memory.model_states import OptimizerStates
from paceline.plan.features.lora import adapter_of, adapter_parameters
from paceline.plan.hardware.device_kinds import CUDA
from paceline.plan.model.read_config import pretrained_dtype
from paceline.plan.model.source_keys import family_words
from paceline.rules.planning import facts_of
from paceline.rules.rule import Facts

if TYPE_CHECKING:
    from paceline.config.schema import Config
    from paceline.config.sections.lora import LoraSection
    from paceline.config.sections.training import TrainingSection
    from paceline.launch.process_spec import Cluster
    from paceline.plan.hardware.probe import Hardware
    from paceline.plan.model.shape import ModelShape


def facts(
    hardware: Hardware,
    cluster: Cluster,
    launcher: str,
    shape: ModelShape | None,
    environ: Mapping[str, str],
    config: Config,
) -> Facts:
    """Collect everything that is known before any process starts.

    Unknown facts stay None, and rules that need them are skipped.
    """
    run = RunDir.at(config.run_directory())
    complete, incomplete = count_checkpoints(run)
    ntasks, model, devices = environ.get("SLURM_NTASKS_PER_NODE", ""), config.model, Path("/sys/class/net")
    words = family_words(str(model.config.get("model_type", ""))) if model.config else None
    world, nodes = cluster.world_size, cluster.num_nodes
    return replace(
        facts_of(hardware, world_size=world, num_nodes=nodes, launcher=launcher, shape=shape),
        config_fields=words.fields if words else None,
        config_words=words.words if words else None,
        pretrained_dtype=pretrained_dtype(model, environ),
        complete_checkpoints=complete,
        incomplete_checkpoints=incomplete,
        checkpoint_bytes=checkpoint_bytes(shape, config.lora, config.training),
        disk_free_bytes=disk_free_bytes(run.root),
        infiniband=infiniband(environ),
        memlock_unlimited=memlock_unlimited(),
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        interfaces=frozenset(os.listdir(devices)) if devices.is_dir() else None,
        nccl_socket_ifname=environ.get("NCCL_SOCKET_IFNAME") if hardware.device == CUDA.name else None,
        slurm_ntasks_per_node=int(ntasks) if ntasks.isdigit() else None,
        torch_xla=importlib.util.find_spec("torch_xla") is not None,
        inside_srun=started_by(environ) == "srun",
        outside_srun=outside_srun(environ),
    )


def checkpoint_bytes(
    shape: ModelShape | None, lora: LoraSection | None, training: TrainingSection
) -> int | None:
    """Return the bytes of a checkpoint of one trained model; None if they are not known."""
    if shape is None:
        return None
    try:  # errors are reported where the plan is made
        adapter = adapter_of(lora)
        states = OptimizerStates.configured(training, shape, adapter)
    except ConfigError:
        return None
    count = shape.num_parameters if adapter is None else adapter_parameters(shape, adapter)
    return None if count is None else round(count * states.saved)


def count_checkpoints(run: RunDir) -> tuple[int, int]:
    """Return (complete, incomplete) counts of checkpoint folders; a complete one has a manifest."""
    if not os.path.isdir(run.checkpoints):  # isdir: a name that is too long gives False instead of an error
        return 0, 0
    # exists: False for a folder of somebody else
    finished = {path: os.path.exists(path / "manifest.json") for path in listed(run.checkpoints)}
    rest = [path for path, is_complete in finished.items() if not is_complete]
    return len(finished) - len(rest), sum(path.is_dir() or path.is_symlink() for path in rest)


def infiniband(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether this node has an InfiniBand (or RoCE) device and ``NCCL_IB_DISABLE`` does not forbid it."""
    devices = root / "sys/class/infiniband"
    return devices.is_dir() and any(devices.iterdir()) and environ.get("NCCL_IB_DISABLE", "0") in ("", "0")


_CAP_IPC_LOCK = 1 << 14  # linux/capability.h: a process with it may lock memory beyond the limit


def memlock_unlimited(root: Path = Path("/")) -> bool:
    """Whether this process and its children may lock unlimited memory (RLIMIT_MEMLOCK, or CAP_IPC_LOCK)."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    status = root / "proc/self/status"
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    capable = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(capable, 16) & _CAP_IPC_LOCK)


def disk_free_bytes(path: Path) -> int | None:
    """Return the free bytes of the file system that will hold ``path``.

    None if the system does not report them.
    """
    parent = next((p for p in (path, *path.parents) if os.path.exists(p)), None)
    try:
        return shutil.disk_usage(parent).free if parent else None
    except OSError:
        return None
