"""``paceline train`` and its kin inside a launcher's processes: one job, or a refusal with the line that
works.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import join as joined
from paceline.cli import main
from paceline.core.errors import ConfigError
from paceline.launch.process_spec import LaunchOptions

TWO_TASKS = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_JOB_ID": "5",
}
TWO_NODES = {
    **TWO_TASKS,
    "SLURM_PROCID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[3-4]",
}
AROUND = {
    "srun": TWO_TASKS,
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "hydra": {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
    "torchrun": {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_ADDR": "h",
    },
    "deepspeed": {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_SIZE": "2",
        "CROSS_SIZE": "1",
        "MASTER_ADDR": "h",
    },
}
NAMES = {name for environ in (*AROUND.values(), TWO_NODES) for name in environ} | {"MASTER_PORT"}

Run = Callable[..., int]


class Became(Exception):
    """In place of ``os.execv``."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "LATER_SECONDS", 0.0)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def become(module: str, *arguments: str) -> None:
        raise Became(" ".join([module, *arguments]))

    monkeypatch.setattr("paceline.cli.process.become", become)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Sets a launcher's variables."""

    def put(environ: dict[str, str]) -> None:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize("launcher", AROUND)
def test_train_becomes_a_rank(within: Any, launcher: str) -> None:
    within(AROUND[launcher])
    with pytest.raises(Became) as caught:
        main.dispatch(["train", "c.yaml", "training.seed=3", "--algorithm", "dpo", "--resume", "latest"])
    said = str(caught.value)
    assert said.startswith("paceline.training.rank --config c.yaml --set training.seed=3")
    assert "training.algorithm=dpo" in said and "training.resume_from_checkpoint=latest" in said
    assert "launch." not in said


def test_deepspeed_puts_the_local_rank_before_the_verb(within: Any) -> None:
    within(AROUND["deepspeed"])
    with pytest.raises(Became, match="--local-rank 0"):
        main.dispatch(["--local_rank=0", "train", "c.yaml"])


@pytest.mark.parametrize("flags", [["--nproc", "2"], ["--nnodes", "2"], ["--node_rank", "0"]])
def test_a_rank_starts_no_processes_of_its_own(within: Any, flags: list[str]) -> None:
    within(TWO_TASKS)
    with pytest.raises(ConfigError) as caught:
        main.dispatch(["train", "c.yaml", *flags])
    (found,) = caught.value.diagnostics
    assert found.code == "launch.many_times" and "2 times" in found.what
    assert "srun --ntasks-per-node=1" in found.hint


@pytest.mark.parametrize("verb", main.STARTERS)
def test_a_verb_that_starts_processes_is_refused(within: Any, verb: str) -> None:
    within(TWO_TASKS)
    with pytest.raises(ConfigError, match=r"launch\.many_times"):
        main.dispatch([verb, "c.yaml"])
    within({"SLURM_PROCID": "1"})
    with pytest.raises(SystemExit) as stop:  # said once
        main.dispatch([verb, "c.yaml"])
    assert stop.value.code == 2


def test_one_task_is_nobodys_rank(within: Any) -> None:
    within({**TWO_TASKS, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"})
    joined.join(Path("c.yaml"), [], LaunchOptions(nproc=8))
    joined.refuse_many_processes("paceline demo")


def test_one_launcher_a_node_knows_which_node_it_is(within: Any) -> None:
    within(TWO_NODES)
    asked = LaunchOptions(nproc=8, nnodes=2)
    joined.join(Path("c.yaml"), [], asked)  # drives its node: nothing to join
    here = joined.on_its_node(asked)
    assert (here.node_rank, here.master_addr, here.nproc) == (1, "gpu3", 8)
    given = LaunchOptions(nproc=8, nnodes=2, node_rank=0, master_addr="other")
    assert joined.on_its_node(given) == given


def test_a_rehearsal_is_of_the_job_as_it_was_started(within: Any) -> None:
    within(TWO_NODES)
    with pytest.raises(SystemExit) as stop:
        joined.rehearsed(LaunchOptions())
    assert stop.value.code == 0
    within({"SLURM_PROCID": "0"})
    here = joined.rehearsed(LaunchOptions())
    assert (here.nproc, here.nnodes, here.master_addr) == (1, 2, "gpu3") and here.master_port
    assert joined.rehearsed(LaunchOptions(nnodes=2)).node_rank == 0
