"""Rank, world size and rendezvous address of this process, from the variables that each launcher sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError
from paceline.launch.environment.job_managers import (
    JobManager,
    first_host,
    first_set,
    local_sizes,
    manager_of,
)
from paceline.launch.processes import MARK
from paceline.runtime import codes

DEFAULT_PORT = 29500
# below the ephemeral range of Linux (32768) and clear of torchrun's 29500
_DERIVED_PORTS = range(20000, 28000)


@dataclass(frozen=True)
class RankEnv:
    """This process among ``world_size``: its rank, its node, and where the ranks meet.

    ``restart`` counts torchrun's restarts (so no keys of an earlier attempt are read); ``agent_store``:
    torchrun's agent hosts the store at ``master_addr:master_port``, otherwise rank 0 does. ``launcher``:
    ``torchrun``, ``deepspeed``, ``mpirun``, ``slurm``, ``jsrun``, ``flux``, ``env`` or ``single``.
    ``one_host``: according to it, all ranks are on this machine.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = DEFAULT_PORT
    restart: int = 0
    agent_store: bool = False
    launcher: str = "single"
    one_host: bool = False

    @property
    def meeting_host(self) -> str:
        """The rendezvous host: loopback if all ranks are on one machine, else ``master_addr``.

        With torchrun's agent always ``master_addr``, where the agent hosts the store.
        """
        return "127.0.0.1" if self.one_host and not self.agent_store else self.master_addr

    @property
    def store_prefix(self) -> str:
        """The prefix of this attempt's keys in the store."""
        return f"paceline/attempt_{self.restart}"

    @property
    def hosts_store(self) -> bool:
        """Whether the store ends with this process."""
        return self.rank == 0 and not self.agent_store

    @staticmethod
    def from_environ(environ: Mapping[str, str], local_rank_flag: int | None = None) -> RankEnv:
        """Read the variables of torchrun, accelerate, deepspeed or a process manager.

        Without any: one process.

        ``local_rank_flag``: the value of ``--local-rank`` (passed by ``torch.distributed.launch``), or None.
        Raises ConfigError if the variables contradict each other or are incomplete.
        """
        if environ.get("RANK", "") != "":
            env = _from_rank_variables(environ, local_rank_flag)
            # Our own launcher, itself one task of a node, has set the ranks of its processes
            if env.launcher == "env" and MARK not in environ:
                _refuse_two_launchers(environ, env)
        else:
            manager = manager_of(environ)
            env = _alone(environ) if manager is None else _from_manager(environ, manager)
        return _checked(env)


def _refuse_two_launchers(environ: Mapping[str, str], env: RankEnv) -> None:
    """Reject a RANK that was set outside the process manager: all of its processes would have the same
    rank."""
    manager = manager_of(environ)
    if manager is None or _number_of(environ, manager.size) == 1:
        return
    theirs = _number_of(environ, manager.rank), _number_of(environ, manager.size)
    if theirs != (env.rank, env.world_size):
        raise _error(
            codes.RUNTIME_ENV_TWO_LAUNCHERS,
            f"RANK and WORLD_SIZE differ from the values of {manager.name}",
            f"RANK={env.rank} of WORLD_SIZE={env.world_size}; {manager.name}: rank {theirs[0]} of"
            f" {theirs[1]}",
            "run unset RANK WORLD_SIZE LOCAL_RANK before the command",
        )


def _from_rank_variables(environ: Mapping[str, str], local_rank_flag: int | None) -> RankEnv:
    """Read torchrun's, accelerate's, torch.distributed.launch's or deepspeed's variables, or manual ones."""
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    # The local rank: from the variable, the flag, or 0 for a single process.
    if "LOCAL_RANK" in environ:
        local_rank = _number(environ, "LOCAL_RANK")
        if local_rank_flag is not None and local_rank_flag != local_rank:
            raise _error(
                codes.RUNTIME_ENV_LOCAL_RANK,
                "--local-rank and LOCAL_RANK differ",
                f"--local-rank {local_rank_flag}, LOCAL_RANK={local_rank}",
                "give only one of them",
            )
    elif local_rank_flag is not None:
        local_rank = local_rank_flag
    elif world_size == 1:
        local_rank = 0
    else:
        raise _error(
            codes.RUNTIME_ENV_MISSING,
            "RANK and WORLD_SIZE are set but LOCAL_RANK is not",
            f"RANK={rank}",
            "LOCAL_RANK=<index of this process on its node>",
        )
    # deepspeed's launcher has its own names for processes per node and number of nodes
    deepspeed = "LOCAL_WORLD_SIZE" not in environ and "CROSS_SIZE" in environ and "LOCAL_SIZE" in environ
    local_size = _number(environ, "LOCAL_SIZE" if deepspeed else "LOCAL_WORLD_SIZE", world_size)
    nodes = _number(environ, "CROSS_SIZE", 0) if deepspeed else 0
    # Several ranks need a rendezvous address.
    if world_size > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not environ.get(name):
                raise _error(
                    codes.RUNTIME_ENV_MISSING,
                    f"RANK and WORLD_SIZE are set but {name} is not",
                    f"RANK={rank}",
                    f"{name}=<address where rank 0 listens>",
                )
    launched = deepspeed or "LOCAL_WORLD_SIZE" in environ
    return RankEnv(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_size,
        num_nodes=nodes or _number(environ, "GROUP_WORLD_SIZE", max(1, -(-world_size // max(1, local_size)))),
        one_host=launched and local_size == world_size > 1,
        master_addr=environ.get("MASTER_ADDR") or "127.0.0.1",
        master_port=_number(environ, "MASTER_PORT", DEFAULT_PORT),
        restart=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "deepspeed" if deepspeed else "env",
    )


def _from_manager(environ: Mapping[str, str], manager: JobManager) -> RankEnv:
    """Read the variables of one process manager."""
    rank, world_size = _number_of(environ, manager.rank), _number_of(environ, manager.size)
    on_nodes = first_set(environ, manager.local_size)
    sizes = local_sizes(on_nodes)
    if on_nodes and not all(sizes or (0,)):
        raise _error(
            codes.RUNTIME_ENV_NUMBER,
            f"the numbers of processes per node, from {manager.name}, must be 1 or more",
            f"{manager.local_size[0]}={on_nodes[:80]}",
            "2, or 2(x3),1",
        )
    # Nodes and ranks per node: each may be missing and follows from the other.
    nodes = _number_of(environ, manager.nodes, 0)
    if len(set(sizes)) > 1:
        raise _uneven(f"{manager.name}: {on_nodes} processes on the nodes")
    # Ranks per node from the manager, else an even split over the nodes.
    local_world_size = sizes[0] if sizes else max(1, world_size // (nodes or 1))
    num_nodes = nodes or max(1, -(-world_size // local_world_size))
    # Rendezvous at the first host, on a port derived from the job, unless the user set them.
    host = first_host(first_set(environ, manager.hosts)) if num_nodes > 1 else ""
    address = environ.get("MASTER_ADDR") or host or ("" if num_nodes > 1 else "127.0.0.1")
    if not address:
        raise _error(
            codes.RUNTIME_ENV_MISSING,
            f"there are {num_nodes} nodes, but MASTER_ADDR, where they connect, is not set",
            "no MASTER_ADDR",
            manager.export,
        )
    job = ".".join(filter(None, (first_set(environ, manager.job), environ.get("SLURM_STEP_ID", ""))))
    return RankEnv(
        rank=rank,
        local_rank=_number_of(environ, manager.local_rank, rank % local_world_size),
        world_size=world_size,
        local_world_size=local_world_size,
        num_nodes=num_nodes,
        master_addr=address,
        master_port=_number(environ, "MASTER_PORT", _port_for(job)),
        launcher="slurm" if manager.word == "srun" else manager.word,
        one_host=bool(sizes or nodes) and local_world_size == world_size > 1,
    )


def _alone(environ: Mapping[str, str]) -> RankEnv:
    """Return the environment of a single process, if WORLD_SIZE does not require more."""
    if environ.get("WORLD_SIZE", "1").strip() not in ("", "1"):
        raise _error(
            codes.RUNTIME_ENV_MISSING,
            "WORLD_SIZE is set but RANK is not",
            f"WORLD_SIZE={environ['WORLD_SIZE']}",
            "set RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as well, or unset WORLD_SIZE",
        )
    return RankEnv()


def _port_for(job: str) -> int:
    """Derive a port that all ranks of a job compute alike, and that two jobs on a host are unlikely to
    share."""
    if not job.strip("."):
        return DEFAULT_PORT
    digest = hashlib.blake2b(job.encode(), digest_size=4).digest()
    return _DERIVED_PORTS[int.from_bytes(digest, "little") % len(_DERIVED_PORTS)]


def _number_of(environ: Mapping[str, str], names: tuple[str, ...], default: int | None = None) -> int:
    """Return the value of the first of these variables that is set, as a number."""
    name = next((name for name in names if environ.get(name)), names[0] if names else "")
    return _number(environ, name, default)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if text == "" and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        shown = f"{name}={text}" if name in environ else f"no {name}"
        raise _error(
            codes.RUNTIME_ENV_NUMBER, f"{name} must be a whole number", shown, f"{name}=0, 1, 2, …"
        ) from None


def _checked(env: RankEnv) -> RankEnv:
    if env.world_size < 1 or not 0 <= env.rank < env.world_size:
        raise _error(
            codes.RUNTIME_ENV_RANK,
            "the rank must be from 0 to world size - 1",
            f"rank {env.rank} of {env.world_size}",
            "start all ranks with the same WORLD_SIZE",
        )
    if env.local_rank < 0 or env.local_rank >= max(env.local_world_size, 1):
        raise _error(
            codes.RUNTIME_ENV_LOCAL_RANK,
            "the local rank must be from 0 to the number of processes on this node - 1",
            f"local rank {env.local_rank} of {env.local_world_size}",
            "LOCAL_RANK=<index on this node>",
        )
    if env.launcher != "torchrun" and env.world_size % max(env.local_world_size, 1):
        raise _uneven(f"{env.world_size} processes, {env.local_world_size} of them on this node")
    if not 0 < env.master_port < 65536:
        raise _error(
            codes.RUNTIME_ENV_PORT, "MASTER_PORT is not a port", str(env.master_port), "MASTER_PORT=29500"
        )
    return env


def _uneven(counts: str) -> ConfigError:
    return _error(
        codes.RUNTIME_ENV_UNEVEN,
        "every node must start the same number of processes",
        counts,
        "the same number on each node",
    )


def _error(code: Code, what: str, found: str, hint: str) -> ConfigError:
    return ConfigError(code(what, where="environment", found=found, hint=hint))
