"""``paceline doctor``: each finding with its remedy, text and JSON, the exit code; no torch in it."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.flight_recorder.components.types import MatchState, Op
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.doctor.inspect import Inspection, parse_holders, parse_pairs
from paceline.doctor.report import as_json, findings, text
from paceline.doctor.run_failure import compare_flights, differing_calls, run_findings
from paceline.plan.hardware.choose_devices import choose
from paceline.plan.hardware.probe_results import (
    DeviceFiles,
    ProbedDevice,
    ProbeResults,
    SmiAnswer,
    TorchAnswer,
    Wheel,
)
from paceline.plan.packages import MadeFor

CARDS = tuple(ProbedDevice("NVIDIA L4", 22 << 30, 21 << 30, 8.9, f"GPU-{i}") for i in range(2))
SIGHTS = ProbeResults(
    Wheel("2.13.0+cu130", cuda="13.0"),
    DeviceFiles(nvidia=2),
    SmiAnswer(CARDS, "580.95.05"),
    torch=TorchAnswer(
        "2.13.0+cu130", "cuda", CARDS, cuda="13.0", nccl="2.28.9", arch_list=("sm_80", "sm_86")
    ),
)
SOUND = Inspection(
    SIGHTS,
    choose(SIGHTS, {}),
    shm_bytes=16 << 30,
    open_files=65536,
    compiler="/usr/bin/gcc",
    headers="/usr/include/python3.12/Python.h",
    holders=((4242, 3 << 30, "python serve.py"),),
    pairs=(2, 2),
    packages={"torch": "2.13.0+cu130", "triton": "3.6.0"},
)
IDLE = replace(SIGHTS, wheel=Wheel("2.13.0+cpu"), torch=None)


def test_a_sound_machine_has_no_finding_and_the_report_has_every_witness() -> None:
    assert findings(SOUND) == ()
    report = text(SOUND, ())
    for words in (
        "cuda: torch 2.13.0+cu130 sees 2 CUDA devices, compute capability 8.9",
        "NVIDIA L4: 22.0 GiB, 21.0 GiB free now, compute capability 8.9",
        "2.13.0+cu130 (CUDA 13.0 build); sees 2 cuda; NCCL 2.28.9",
        "driver 580.95.05; NVIDIA L4, NVIDIA L4",
        "2 nvidia",
        "bfloat16",
        "varlen_flash",
        "3.0 GiB: python serve.py (pid 4242)",
        "2 of 2 pairs of cards copy directly",
        "/dev/shm 16.0 GiB",
        "triton 3.6.0",
        "no problems found",
    ):
        assert words in report, words


@pytest.mark.parametrize(
    ("changed", "code", "severity"),
    [
        ({"misfits": (MadeFor("torchvision", "0.26", "2.11.0", "2.13.0"),)}, "plan.other_torch", "error"),
        ({"sights": IDLE, "choice": choose(IDLE, {})}, "device.cpu_torch", "error"),
        ({"sights": replace(SIGHTS, wheel=Wheel())}, "doctor.no_torch", "error"),
        ({"shm_bytes": 64 << 20}, "doctor.shm", "warning"),
        (
            {"infiniband": True, "memlock_unlimited": False, "memlock_bytes": 65536},
            "doctor.memlock",
            "warning",
        ),
        ({"open_files": 1024}, "doctor.files", "note"),
        ({"compiler": ""}, "doctor.compiler", "note"),
        ({"headers": ""}, "doctor.headers", "note"),
        ({"pairs": (2, 0)}, "doctor.p2p", "warning"),
    ],
)
def test_what_is_missing_is_found_with_its_remedy(changed: dict[str, Any], code: str, severity: str) -> None:
    seen = replace(SOUND, **changed)
    [finding] = findings(seen)
    assert (finding.code, finding.severity.value) == (code, severity) and finding.hint
    assert code in text(seen, [finding])
    assert [one["code"] for one in json.loads(json.dumps(as_json(seen, [finding])))["findings"]] == [code]


def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.doctor.inspect.inspect", lambda environ: SOUND)
    done = CliRunner().invoke(application_of("doctor"), ["--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["device"] == "cuda" and report["precision"] == "bfloat16"
    assert report["seen"]["torch"]["nccl"] == "2.28.9" and report["attention"].startswith("varlen_flash")
    bad = replace(SOUND, sights=IDLE, choice=choose(IDLE, {}))
    monkeypatch.setattr("paceline.doctor.inspect.inspect", lambda environ: bad)
    done = CliRunner().invoke(application_of("doctor"), [])
    assert done.exit_code == 1 and "pip install --force-reinstall torch==2.13.0" in done.stdout


def test_a_run_that_is_none_is_refused_before_the_machine_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.doctor.inspect.inspect", lambda environ: pytest.fail("looked at"))
    for folder, words in ((tmp_path / "nosuch", "no such run directory"), (tmp_path, "is not a run")):
        done = CliRunner().invoke(application_of("doctor"), [str(folder)])
        assert isinstance(done.exception, ConfigError) and words in str(done.exception)


def test_memory_that_nobody_is_seen_to_hold_is_said() -> None:
    full = tuple(replace(card, free_bytes=2 << 30) for card in CARDS)
    sights = replace(SIGHTS, nvidia=replace(SIGHTS.nvidia, devices=full))
    seen = replace(SOUND, sights=sights, choice=choose(sights, {}), holders=())
    assert "in use     40.0 GiB, by processes that this container does not see" in text(seen, ())
    assert "in use" not in text(replace(SOUND, holders=()), ())


def test_a_limit_is_told_as_a_number() -> None:
    seen = replace(SOUND, infiniband=True, memlock_unlimited=False, memlock_bytes=65536)
    [finding] = findings(seen)
    assert finding.found == "64.00 KiB" and "locked memory 64.00 KiB" in text(seen, ())
    assert as_json(seen, ())["memlock_bytes"] == 65536 and as_json(SOUND, ())["memlock_bytes"] is None


def test_what_the_tools_print_is_read() -> None:
    assert parse_holders("4242, 3072, python serve.py\n77, [N/A], x, y\nno such\n") == (
        (4242, 3 << 30, "python serve.py"),
        (77, 0, "x, y"),
    )
    matrix = (
        " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n  X    = Self\n  OK   = Status Ok\n"
    )
    assert parse_pairs(matrix) == (2, 1) and parse_pairs("") == (0, 0)


def _dump(number: int) -> str:
    entry = {"collective_seq_id": number, "process_group": ["3", "dp_shard"], "profiling_name": "x"}
    return json.dumps({"entries": [entry]})


def test_a_run_that_timed_out_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path)
    run.events_dir.mkdir()
    for rank in range(3):
        run.flight(rank).write_text(_dump(409 if rank == 2 else 412))
    [finding] = run_findings(run)
    assert finding.code == "doctor.stuck"
    assert finding.found == "group dp_shard: rank 2 at 409; the others at collective 412"
    run.flight(0).unlink()
    run.flight(1).unlink()
    [finding] = run_findings(run)
    assert (finding.code, finding.severity.value) == ("doctor.no_flights", "note")
    assert compare_flights({0: _dump(1), 1: _dump(1)}) == [] == compare_flights({0: "nonsense"})


def _op(name: str, sizes: tuple[list[list[int]], list[list[int]]], dtype: str) -> dict[str, object]:
    """An entry as torch's recorder writes it."""
    return {
        "collective_seq_id": 7,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"nccl:{name}",
        "input_sizes": sizes[0],
        "output_sizes": sizes[1],
        "input_dtypes": [dtype],
        "output_dtypes": [dtype],
        "state": "started",
        "time_created_ns": 1,
    }


def test_calls_that_differ_are_those_that_torch_s_own_analyzer_names() -> None:
    """All pairs of 40 random calls of two ranks."""
    pick = random.Random(36)
    calls = []
    for _ in range(40):
        n, dtype = pick.choice([8, 16]), pick.choice(["Float", "BFloat16"])
        name, sizes = pick.choice(
            [
                ("all_reduce", ([[n]], [[n]])),
                ("broadcast", ([[n]], [[n]])),
                ("_all_gather_base", ([[n]], [[2 * n]])),
                ("_reduce_scatter_base", ([[2 * n]], [[n]])),
                ("all_to_all", ([[n]], [[pick.choice([4, 12])]])),
                ("reduce", ([[n]], [[n]])),
            ]
        )
        calls.append(_op(name, sizes, dtype))
    members = {"0": {0, 1}}
    differed = 0
    for mine, other in itertools.combinations(calls, 2):
        judged = Op(mine, members, "0").match(Op(other, members, "0")).state
        same = judged in (MatchState.FULLY_MATCHED, MatchState.UNDECIDED)
        found = differing_calls({0: json.dumps({"entries": [mine]}), 1: json.dumps({"entries": [other]})})
        assert (not found) == same or mine["profiling_name"] == "nccl:all_to_all", (mine, other, judged)
        differed += not same
    assert differed > 100


def test_a_run_whose_ranks_met_in_different_sizes_has_a_problem(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path)
    run.events_dir.mkdir()
    for rank in range(3):
        size = [[12 if rank == 2 else 8]]
        run.flight(rank).write_text(json.dumps({"entries": [_op("all_reduce", (size, size), "Float")]}))
    [finding] = run_findings(run)
    assert finding.code == "doctor.mismatch"
    assert finding.found == (
        "group default_pg, collective 7: rank 2 in all_reduce: input [12] Float, output [12] Float;"
        " the others in all_reduce: input [8] Float, output [8] Float"
    )


def test_no_torch_in_its_process() -> None:
    program = (
        "import sys; import paceline.cli.doctor; from paceline.doctor import inspect as i;"
        " from paceline.doctor.report import findings; s = i.inspect({}); findings(s);"
        " print(s.choice.kind.name, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
