"""Process managers: each row of the table joins a rank to its job; a rank that cannot be joined is
refused, not run alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from paceline.core.errors import ConfigError, PacelineError
from paceline.launch.environment.job_managers import (
    MANAGERS,
    RANK_ALONE,
    local_sizes,
    manager_of,
    process_rank,
    started_by,
)
from paceline.runtime.rank_env import RankEnv

# As the managers set them for the fourth of four processes on two nodes; Hydra's, Open MPI's and Slurm's were
# read from real processes.
SEEN: dict[str, dict[str, str]] = {
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_RANK": "3",
        "PMIX_NAMESPACE": "7",
        "OMPI_MCA_orte_ess_num_procs": "4",
    },
    "jsrun": {
        "JSM_NAMESPACE_RANK": "3",
        "JSM_NAMESPACE_SIZE": "4",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
        "JSM_NAMESPACE_LOCAL_SIZE": "2",
        "PMIX_RANK": "3",
        "LSB_JOBID": "9",
    },
    "MVAPICH2": {
        "MV2_COMM_WORLD_RANK": "3",
        "MV2_COMM_WORLD_SIZE": "4",
        "MV2_COMM_WORLD_LOCAL_RANK": "1",
        "MV2_COMM_WORLD_LOCAL_SIZE": "2",
        "PMI_ID": "3",
    },
    "MVAPICH": {
        "MVP_COMM_WORLD_RANK": "3",
        "MVP_COMM_WORLD_SIZE": "4",
        "MVP_COMM_WORLD_LOCAL_RANK": "1",
        "MVP_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "Hydra (MPICH, Intel MPI)": {
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
        "PMI_FD": "8",
        "HYDI_CONTROL_FD": "7",
    },
    "PALS": {
        "PALS_RANKID": "3",
        "PALS_LOCAL_RANKID": "1",
        "PALS_LOCAL_SIZE": "2",
        "PALS_NODEID": "1",
        "PALS_APID": "a-b",
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
    },
    "Cray PMI": {
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "PMI_LOCAL_RANK": "1",
        "PMI_LOCAL_SIZE": "2",
        "PMI_FORK_RANK": "3",
    },
    "Platform MPI": {"MPI_RANKID": "3", "MPI_NRANKS": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "Flux": {
        "FLUX_TASK_RANK": "3",
        "FLUX_TASK_LOCAL_ID": "1",
        "FLUX_JOB_SIZE": "4",
        "FLUX_JOB_NNODES": "2",
        "FLUX_JOB_ID": "12",
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
    },
    "Slurm": {
        "SLURM_PROCID": "3",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "gpu[3-4]",
        "SLURM_JOB_ID": "5",
    },
}
THERE = {"MASTER_ADDR": "gpu3", "MASTER_PORT": "29511"}


def code_of(environ: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        RankEnv.from_environ(environ)
    (found,) = caught.value.diagnostics
    assert found.hint and found.found
    return found.code


def test_every_row_of_the_table_is_tried() -> None:
    assert {*SEEN, "a process manager with PMI"} == {manager.name for manager in MANAGERS}


@pytest.mark.parametrize("name", SEEN)
def test_a_rank_joins_its_job(name: str) -> None:
    environ = {**SEEN[name], **THERE}
    manager = manager_of(environ)
    assert manager is not None and manager.name == name
    assert (
        started_by(environ),
        process_rank(environ).rank,
        process_rank(environ).size,
        process_rank(environ).local_size,
    ) == (
        manager.word,
        3,
        4,
        2,
    )
    env = RankEnv.from_environ(environ)
    assert (env.rank, env.local_rank, env.world_size, env.local_world_size, env.num_nodes) == (3, 1, 4, 2, 2)
    assert (env.master_addr, env.master_port) == ("gpu3", 29511)


@pytest.mark.parametrize("name", [name for name in SEEN if name != "Slurm"])
def test_several_nodes_without_an_address_are_refused_and_slurm_names_its_first(name: str) -> None:
    assert code_of(SEEN[name]) == "runtime.env_missing"


def test_all_ranks_of_a_job_derive_one_port_and_another_job_another() -> None:
    def port(**change: str) -> int:
        return RankEnv.from_environ({**SEEN["Slurm"], **change}).master_port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0") != port(SLURM_JOB_ID="6")
    assert port() != port(SLURM_STEP_ID="1")  # two steps of one job side by side


def test_hydra_under_slurm_counts_its_own_processes() -> None:
    """mpiexec in a batch job starts one proxy a node by srun: its tasks are not the ranks."""
    proxy = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_ID": "5",
    }
    env = RankEnv.from_environ({**proxy, **SEEN["Hydra (MPICH, Intel MPI)"], **THERE})
    assert (env.rank, env.world_size, env.launcher) == (3, 4, "mpirun")


def test_srun_with_pmi_is_slurms() -> None:
    env = RankEnv.from_environ({**SEEN["Slurm"], "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "5"})
    assert (env.launcher, env.local_rank, env.num_nodes) == ("slurm", 1, 2)


def test_bare_pmi_is_one_node() -> None:
    env = RankEnv.from_environ({"PMI_RANK": "1", "PMI_SIZE": "2"})
    assert (env.rank, env.local_rank, env.world_size, env.num_nodes, env.launcher) == (1, 1, 2, 1, "mpirun")


@pytest.mark.parametrize("name", RANK_ALONE)
def test_a_rank_without_a_number_of_processes_is_refused(name: str) -> None:
    environ = {name: "1"}
    assert started_by(environ) == "mpirun" or started_by(environ) in ("jsrun", "flux")
    assert code_of(environ) == "launch.rank_alone"
    with pytest.raises(ConfigError, match=r"launch\.rank_alone"):
        process_rank(environ)


@pytest.mark.parametrize(
    "change",
    [{"SLURM_STEP_TASKS_PER_NODE": "3,1"}, {"SLURM_STEP_TASKS_PER_NODE": "2(x1),1(x2)"}],
)
def test_uneven_nodes_are_refused(change: dict[str, str]) -> None:
    assert code_of({**SEEN["Slurm"], **change}) == "runtime.env_uneven"
    uneven = {**SEEN["Open MPI"], "OMPI_COMM_WORLD_LOCAL_SIZE": "3", **THERE}
    assert code_of(uneven) == "runtime.env_uneven"


def test_a_rank_left_over_around_a_process_manager_is_refused() -> None:
    left = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **THERE}
    assert code_of({**left, **SEEN["Open MPI"]}) == "runtime.env_two_launchers"
    by_hand = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **THERE}
    assert RankEnv.from_environ({**by_hand, **SEEN["Slurm"]}).rank == 3
    inside = {**by_hand, "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    # torchrun started by srun, once a node
    assert RankEnv.from_environ({**inside, **SEEN["Slurm"]}).rank == 0


@pytest.mark.parametrize(
    ("text", "sizes"), [("2(x3),1", (2, 2, 2, 1)), ("4", (4,)), ("", ()), ("2,2", (2, 2))]
)
def test_sizes_of_nodes(text: str, sizes: tuple[int, ...]) -> None:
    assert local_sizes(text) == sizes


def test_no_value_of_a_launchers_variable_crashes() -> None:
    """Random sets of all variables of the table with values that no launcher writes: a place in the world,
    or a named refusal.
    """
    rng = random.Random(5)
    names = sorted(
        {name for m in MANAGERS for name in (*m.rank, *m.size, *m.local_rank, *m.local_size, *m.nodes)}
    )
    names += [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_STEP_ID",
        "SLURM_STEP_NODELIST",
        *RANK_ALONE,
    ]
    values = [
        "",
        "0",
        "1",
        "2",
        "-1",
        "x",
        "9" * 5000,
        "1(x2)",
        "1(x999999999999)",
        "node[",
        "n[3-1]",
        "(x2)",
        "²",
        "None",
    ]
    codes: set[str] = set()
    for _ in range(6000):
        environ = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(1, 9))}
        try:
            here = process_rank(environ)
            env = RankEnv.from_environ(environ)
            assert 0 <= env.rank < env.world_size == here.size and here.local_size >= 1
        except PacelineError as error:
            codes |= {d.code for d in error.diagnostics}
    assert {"launch.rank_alone", "runtime.env_number", "runtime.env_missing", "runtime.env_rank"} <= codes
