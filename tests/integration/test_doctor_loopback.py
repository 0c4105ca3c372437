"""``paceline doctor CONFIG`` in three processes on loopback, each a node: the part of
``test_doctor_nodes.py`` that needs neither root nor namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import warm
from cluster_nodes import Report, clean_environment, report_of
from ranks import free_port

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]


class Job:
    def __init__(self, folder: Path, tiny: Tiny) -> None:
        self.folder, self.port = folder, free_port()
        self.config = folder / "job.yaml"
        self.config.write_text(json.dumps(tiny(use_cpu=True)))  # YAML is a superset

    def doctor(
        self, words: Mapping[int, Sequence[str]], environ: Mapping[str, str] | None = None, *common: str
    ) -> list[Report]:
        """Start a node for each entry of ``words``, with these arguments; return their reports."""
        processes = [
            warm.Popen(
                [sys.executable, "-m", "paceline.cli.main", "doctor", str(self.config), "--json"]
                + [
                    "--nnodes",
                    "3",
                    "--master-addr",
                    "127.0.0.1",
                    "--master-port",
                    str(self.port),
                    "--nproc",
                    "1",
                ]
                + [*common, "--node-rank", str(number), *arguments],
                env={**clean_environment(self.folder), **(environ if environ and number else {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                start_new_session=True,
            )
            for number, arguments in words.items()
        ]
        reports = [report_of(process) for process in processes]
        assert all(reports)
        return [one for one in reports if one is not None]


@pytest.fixture
def job(tmp_path: Path, tiny: Tiny) -> Job:
    return Job(tmp_path, tiny)


@pytest.mark.full
def test_healthy_nodes_have_no_findings_and_end_with_an_all_reduce(job: Job, tmp_path: Path) -> None:
    reports = job.doctor({0: (), 1: (), 2: ()})
    for one in reports:
        assert one.code == 0 and one.findings == [], one
        assert one.lines == reports[0].lines and "3 ranks, all-reduce" in one.lines[-1]
    assert not list(tmp_path.rglob(".paceline-doctor*"))


def test_differences_are_named_once_with_their_nodes(job: Job) -> None:
    environ = {"NCCL_ALGO": "Ring"}
    reports = job.doctor({0: (), 1: ("training.seed=8",), 2: ()}, environ)
    first = reports[0]
    assert all(one.code == 1 and one.findings == first.findings for one in reports)
    seed, ring = first.of("node.config"), first.of("node.environment")
    assert seed["where"].startswith("node 1 (") and "training.seed" in seed["what"]
    assert seed["found"] == "8 there, 7 on the others" and seed["severity"] == "error"
    assert "node 0" in ring["where"] and ring["found"] == "none there, Ring on the others"
    assert first.codes() == ["node.config", "node.environment"]
    assert first.lines[-1].startswith("ranks     not started")


def test_a_node_that_does_not_come_is_named_in_time(job: Job) -> None:
    reports = job.doctor({0: (), 2: ()}, None, "--wait", "3")
    for one in reports:
        assert one.code == 1 and one.findings == reports[0].findings
        assert one.of("node.missing")["where"] == "node 1"
        assert one.of("node.missing")["found"] == "2 of 3 nodes came within 3 s"
    (alone,) = job.doctor({1: ()}, None, "--wait", "2")
    assert alone.code == 1 and alone.codes() == ["node.master_loopback"]


@pytest.mark.full
def test_srun_gives_the_numbers_and_one_task_of_a_node_checks_it(job: Job) -> None:
    """Two nodes of two tasks, as srun starts them; the second task of each leaves the check to the first."""

    def task(rank: int) -> dict[str, str]:
        names = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
        local = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_TASKS_PER_NODE": "2(x2)"}
        return {**names, **local, "SLURM_JOB_NODELIST": "here[1-2]", "MASTER_ADDR": "127.0.0.1"}

    argv = [sys.executable, "-m", "paceline.cli.main", "doctor", str(job.config), "--json"]
    processes = [
        subprocess.Popen(
            argv,
            env={**clean_environment(job.folder), **task(rank), "MASTER_PORT": str(job.port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=job.folder,
        )
        for rank in range(4)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], outputs
    assert [bool(stdout) for stdout, _ in outputs] == [True, False, True, False]
    assert json.loads(outputs[0][0]) == json.loads(outputs[2][0])
    assert "4 ranks" in json.loads(outputs[0][0])["lines"][-1]


def test_one_node_is_checked_for_its_config(job: Job, tiny: Tiny) -> None:
    def alone(*words: str) -> tuple[int, dict[str, Any]]:
        argv = [sys.executable, "-m", "paceline.cli.main", "doctor", str(job.config), "--json", *words]
        environ = clean_environment(job.folder)
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=240)
        return done.returncode, json.loads(done.stdout)

    code, data = alone()
    assert code == 0 and data["healthy"] and data["findings"] == []
    code, data = alone("data.train=/nowhere/rows.json", "training.output_dir=/proc/run")
    found = {finding["code"]: finding for finding in data["findings"]}
    assert code == 1 and not data["healthy"] and {"data.missing", "node.folder"} <= found.keys()
    assert "/proc" in found["node.folder"]["found"] and found["node.folder"]["hint"]
