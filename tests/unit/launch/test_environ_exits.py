from __future__ import annotations

import signal

import pytest

from paceline.config.load import load_config
from paceline.core.diagnostics import Severity
from paceline.core.errors import ExitCode
from paceline.launch.environment.guide_variables import translate
from paceline.launch.environment.job_managers import outside_srun, started_by
from paceline.launch.supervision.exit_codes import killed_diagnostic, overall_code


def test_nccl_timeout_becomes_the_process_group_s() -> None:
    found = translate({"NCCL_TIMEOUT": "600"})
    assert found.overrides == {"training.ddp_timeout": "600"}
    assert found.notes[0].severity is Severity.NOTE and "ddp_timeout" in found.notes[0].what
    assert load_config(None, environ=found.environ({})).config.training.ddp_timeout == 600


def test_what_the_user_wrote_in_paceline_s_own_variables_wins() -> None:
    given = {"NCCL_TIMEOUT": "600", "PACELINE_TRAINING__DDP_TIMEOUT": "700"}
    assert load_config(None, environ=translate(given).environ(given)).config.training.ddp_timeout == 700


@pytest.mark.parametrize("value", ["", "soon", "-1", "0", "1.5"])
def test_a_timeout_that_is_no_number_is_an_error(value: str) -> None:
    found = translate({"NCCL_TIMEOUT": value})
    assert not found.overrides and found.notes[0].severity is Severity.ERROR


def test_deepspeed_s_log_level_is_ours_or_said_to_be_unused() -> None:
    found = translate({"DEEPSPEED_LOG_LEVEL": "WARNING"})
    assert load_config(None, environ=found.environ({})).config.training.log_level == "warning"
    unused = translate({"DEEPSPEED_LOG_LEVEL": "chatty"})
    assert not unused.overrides and unused.notes[0].severity is Severity.WARNING


def test_the_others_are_passed_on_and_mentioned() -> None:
    names = (
        "NCCL_IB_DISABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_DEBUG",
        "TORCH_DISTRIBUTED_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
    )
    found = translate({**dict.fromkeys(names, "1"), "TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert {note.where for note in found.notes} == set(names) and not found.overrides
    assert translate({"PATH": "/bin"}).notes == ()


def test_a_debug_level_that_torch_would_die_of_is_an_error() -> None:
    levels = {note.severity for note in translate({"TORCH_DISTRIBUTED_DEBUG": "VERBOSE"}).notes}
    assert Severity.ERROR in levels


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({}, None),
        ({"RANK": "0"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "env"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_SIZE": "1"}, "deepspeed"),
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"TORCHELASTIC_RUN_ID": "x", "ACCELERATE_MIXED_PRECISION": "no"}, "accelerate"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "mpirun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "srun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, None),  # the shell of sbatch
        ({"SLURM_PROCID": "0"}, None),
    ],
)
def test_who_started_us(environ: dict[str, str], launcher: str | None) -> None:
    assert started_by(environ) == launcher


#: what Slurm 22.05 set on two nodes: sbatch --nodes=2 --ntasks-per-node=1; sbatch --nodes=2; salloc -n1
BATCH = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
SALLOC = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
#: srun -N1 -n1 inside that allocation changes SLURM_NNODES and SLURM_NTASKS too
STEP = {"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NNODES": "1", "SLURM_NTASKS": "1"}


@pytest.mark.parametrize(
    ("environ", "allocation"),
    [
        ({}, None),
        (BATCH, (2, 2)),
        ({k: v for k, v in BATCH.items() if k not in ("SLURM_NTASKS", "SLURM_NPROCS")}, (2, 0)),
        ({**BATCH, "SLURM_STEP_ID": "4294967290"}, (2, 2)),  # salloc's interactive step
        ({**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, None),
        ({**BATCH, **STEP}, None),
        (SALLOC, (1, 1)),
    ],
)
def test_what_slurm_allocated_around_a_process_that_srun_did_not_start(
    environ: dict[str, str], allocation: tuple[int, int] | None
) -> None:
    assert outside_srun(environ) == allocation


@pytest.mark.parametrize(
    ("codes", "stop", "expected"),
    [
        ([0, 0], None, 0),
        ([0, 1], None, 1),
        ([76, 1], None, 1),
        ([2, 2], None, 2),
        ([76, 76], None, 76),
        ([75, 75], signal.SIGTERM, 75),
        ([75, -15], signal.SIGTERM, 75),
        ([0, 75], signal.SIGTERM, 75),
        ([-15, -15], signal.SIGTERM, 143),
        ([-15, -15], signal.SIGINT, 130),
        ([-15, -15], None, 143),
        ([-9, 76], None, 137),
        ([-15, 1], None, 1),
        ([75, 1], signal.SIGTERM, 1),
        ([0, 70], None, 70),
        ([-11, -15], signal.SIGTERM, 139),
    ],
)
def test_one_code_of_many(codes: list[int], stop: int | None, expected: int) -> None:
    assert overall_code(dict(enumerate(codes)), stop_signal=stop) == expected


def test_a_death_by_signal_has_a_name() -> None:
    assert "memory" in killed_diagnostic(1, -9).hint and "rank 1" in killed_diagnostic(1, -9).what
    assert "signal 63" in killed_diagnostic(0, -63).what
    assert ExitCode.STOPPED == 75
