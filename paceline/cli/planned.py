"""From the command line's questions to a Plan: how many processes, on what hardware, in which run directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.rundir import RunDir

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config
    from paceline.launch.spec import Cluster
    from paceline.plan.hardware import Hardware
    from paceline.plan.plan import Plan


@dataclass(frozen=True)
class Asked:
    """What the command line's own flags ask for; None where they say nothing."""

    nproc: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    algorithm: str | None = None
    resume: str | None = None
    use_torchrun: bool = False

    def flags(self) -> dict[str, object]:
        """The same as config keys: the command-line layer."""
        asked = {
            "launch.nproc": self.nproc,
            "launch.nnodes": self.nnodes,
            "launch.node_rank": self.node_rank,
            "launch.master_addr": self.master_addr,
            "launch.master_port": self.master_port,
            "training.algorithm": self.algorithm,
            "training.resume_from_checkpoint": self.resume,
        }
        return {key: value for key, value in asked.items() if value is not None}


def planned(loaded: Loaded, *, use_torchrun: bool = False) -> Plan:
    """The plan for this machine. Raises ConfigError with every violation that hardware and world size bring up."""
    from paceline.launch.spec import Cluster
    from paceline.launch.start import launcher_for
    from paceline.plan.choose import make_plan
    from paceline.plan.hardware import probe_hardware
    from paceline.plan.shape import shape_of

    config = loaded.config
    hardware = probe_hardware(os.environ, use_cpu=config.training.use_cpu, num_nodes=config.launch.nnodes)
    cluster = Cluster(num_processes(config, hardware), config.launch.nnodes)
    return make_plan(
        config,
        hardware,
        world_size=cluster.world_size,
        num_nodes=config.launch.nnodes,
        launcher=launcher_for(cluster, use_torchrun=use_torchrun),
        run_dir=str(RunDir.at(config.run_directory()).root),
        shape=shape_of(config.model, os.environ),
    )


def num_processes(config: Config, hardware: Hardware) -> int:
    """Processes on this node: as asked, else one a GPU, one on a CPU."""
    if config.launch.nproc is not None:
        return config.launch.nproc
    alone = config.training.distributed is False or config.training.distributed_strategy in ("single", "data_parallel")
    return hardware.num_devices if hardware.device == "cuda" and not alone else 1


def cluster_of(config: Config, plan: Plan) -> Cluster:
    """The plan's processes with the addresses of the config."""
    from paceline.launch.spec import Cluster

    c = config.launch
    return Cluster(plan.world_size // plan.num_nodes, plan.num_nodes, c.node_rank, c.master_addr, c.master_port)
