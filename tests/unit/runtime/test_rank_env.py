"""Every launcher's variables, and what is refused."""

from __future__ import annotations

import pytest

from paceline.core.errors import ConfigError
from paceline.launch.processes import MARK
from paceline.runtime.rank_env import RankEnv, first_host

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29511",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}


def code_of(environ: dict[str, str], flag: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        RankEnv.from_environ(environ, flag)
    return caught.value.diagnostics[0].code


def test_nothing_set_is_one_process() -> None:
    env = RankEnv.from_environ({"PATH": "/bin", "ACCELERATE_MIXED_PRECISION": "bf16"})
    assert (env.rank, env.world_size, env.launcher) == (0, 1, "single")


def test_torchrun() -> None:
    env = RankEnv.from_environ(TORCHRUN)
    assert env == RankEnv(5, 1, 8, 4, 2, "node0", 29511, 3, True, "torchrun")


def test_deepspeed_has_names_of_its_own() -> None:
    """As deepspeed/launcher/launch.py of 0.19 sets them for the third process of node 1; the flag is added
    to every command.
    """
    environ = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "2",
        "CROSS_SIZE": "3",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29511",
    }
    assert RankEnv.from_environ(environ, 1) == RankEnv(5, 1, 6, 2, 3, "node0", 29511, 0, False, "deepspeed")


def test_accelerate_sets_the_same_variables() -> None:
    environ = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "ACCELERATE_DYNAMO_BACKEND": "no",
    }
    env = RankEnv.from_environ(environ)
    assert (env.rank, env.world_size, env.num_nodes, env.agent_store) == (1, 2, 1, False)


def test_local_rank_flag_of_torch_distributed_launch() -> None:
    assert RankEnv.from_environ(TORCHRUN, 1).local_rank == 1
    without = {k: v for k, v in TORCHRUN.items() if k != "LOCAL_RANK"}
    assert RankEnv.from_environ(without, 2).local_rank == 2
    assert code_of(TORCHRUN, 2) == "runtime.env_local_rank"


def test_open_mpi_on_one_node_needs_no_address() -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "prterun-host-7@1",
    }
    env = RankEnv.from_environ(environ)
    assert (env.rank, env.local_rank, env.world_size, env.num_nodes, env.master_addr, env.launcher) == (
        1,
        1,
        2,
        1,
        "127.0.0.1",
        "mpirun",
    )
    same_job = RankEnv.from_environ(
        {**environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    )
    other_job = RankEnv.from_environ({**environ, "PMIX_NAMESPACE": "prterun-host-8@1"})
    assert env.master_port == same_job.master_port != other_job.master_port


def test_open_mpi_on_two_nodes_needs_an_address() -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    assert code_of(environ) == "runtime.env_missing"
    env = RankEnv.from_environ({**environ, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29502"})
    assert (env.num_nodes, env.master_addr, env.master_port) == (2, "10.0.0.1", 29502)


def test_hydra() -> None:
    env = RankEnv.from_environ(
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    )
    assert (env.rank, env.local_rank, env.world_size) == (1, 1, 2)


def test_srun_finds_the_first_host() -> None:
    env = RankEnv.from_environ(SLURM)
    assert (
        env.rank,
        env.local_rank,
        env.world_size,
        env.local_world_size,
        env.num_nodes,
        env.master_addr,
    ) == (
        3,
        1,
        4,
        2,
        2,
        "gpu003",
    )
    assert (
        env.master_port
        == RankEnv.from_environ({**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).master_port
    )


def test_a_batch_script_without_srun_is_one_process() -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}
    assert RankEnv.from_environ(environ).world_size == 1


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("a", "a"), ("a1,b2", "a1"), ("gpu[003-005,7],login", "gpu003"), ("gpu[7,9]", "gpu7"), ("", "")],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"WORLD_SIZE": ""}, "runtime.env_number"),
        ({"RANK": "two"}, "runtime.env_number"),
        ({"RANK": "8"}, "runtime.env_rank"),
        ({"LOCAL_RANK": "4"}, "runtime.env_local_rank"),
        ({"MASTER_ADDR": ""}, "runtime.env_missing"),
        ({"MASTER_PORT": "70000"}, "runtime.env_port"),
    ],
)
def test_contradictions_are_refused(change: dict[str, str], code: str) -> None:
    assert code_of({**TORCHRUN, **change}) == code


def test_world_size_without_rank_is_refused() -> None:
    assert code_of({"WORLD_SIZE": "4"}) == "runtime.env_missing"
    assert RankEnv.from_environ({"WORLD_SIZE": "1"}).world_size == 1


def test_a_launcher_that_is_one_task_of_a_node_numbers_its_own_ranks() -> None:
    ours = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
    ours |= {"MASTER_ADDR": "gpu003", "MASTER_PORT": "29511"}
    assert code_of({**SLURM, **ours}) == "runtime.env_two_launchers"
    env = RankEnv.from_environ({**SLURM, **ours, MARK: "0f"})
    assert (env.rank, env.world_size, env.local_rank) == (5, 8, 1)
