"""Jobs that ``paceline launch`` writes, under a real Slurm: slurmctld and two slurmd of this machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from rendered_jobs import job, random_value
from support import Run, run_process, write_yaml

from paceline.core.rundir import RunDir
from paceline.schedulers.slurm.job import slurm_job
from paceline.schedulers.write_files import write_job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "it is there"),
]
Tiny = Callable[..., dict[str, Any]]
SOON = 420.0  # seconds after which a job hangs, on a busy machine too
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.SlurmCluster]:
    with slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm") / "c") as cluster:
        yield cluster


class Jobs:
    """Launches from one folder, and what became of them."""

    def __init__(self, cluster: slurm_cluster.SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def paceline(self, *arguments: str) -> Run:
        argv = [sys.executable, "-m", "paceline.cli.main", *arguments]
        return run_process(argv, 300, self.cluster.environ, self.folder)

    def submit(self, config: dict[str, Any], *arguments: str) -> str:
        """Submit a job of a config and return its number."""
        yaml = write_yaml(self.folder / "c.yaml", config)
        done = self.paceline(
            "launch", str(yaml), "--on", "slurm", "--gpus-per-node", "0", "--submit", *arguments
        )
        assert done.code == 0, done.err
        return done.out.split()[-1]

    def until(self, met: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SOON
        while not met():
            assert time.monotonic() < end, f"{what}: {self.out()}\n{self.cluster.logs()}"
            time.sleep(0.5)

    def ended(self, number: str) -> str:
        self.until(lambda: self.cluster.state(number) in ENDED, f"job {number} ends")
        return self.cluster.state(number)

    def out(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.rglob("*-launch/*.out"))

    def under_way(self, run: Path, step: int) -> None:
        pattern = re.compile(rb'"kind":"step"')
        events = RunDir.at(run).events(0)
        self.until(
            lambda: events.is_file() and len(pattern.findall(events.read_bytes())) >= step, f"step {step}"
        )


@pytest.fixture
def jobs(slurm: slurm_cluster.SlurmCluster, tmp_path: Path) -> Jobs:
    return Jobs(slurm, tmp_path)


def weights(run: Path, step: int) -> dict[str, bytes]:
    folder = RunDir.at(run).checkpoint(step)
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))
    }


def test_slurm_accepts_the_scripts_and_reads_every_value_as_it_was_written(jobs: Jobs, tiny: Tiny) -> None:
    config = {**tiny(), "launch": {"save_seconds": 60, "memory": "100M", "cpus_per_node": 1}}
    yaml = write_yaml(jobs.folder / "c.yaml", config)
    for arguments in (
        ["--nodes", "2", "--time", "12h"],
        ["--sweep", "training.seed=1,2,3", "launch.array_limit=2"],
    ):
        done = jobs.paceline("launch", str(yaml), "--on", "slurm", "--gpus-per-node", "0", *arguments)
        assert done.code == 0, done.err
        assert jobs.cluster.call(*done.out.split()[:1], "--test-only", done.out.split()[1]) == ""
    for seed in range(60):
        value = random_value(seed, line_breaks=False).strip() or "x"
        held = job(jobs.folder, nodes=1, launch={"sbatch_options": ["--hold", f"--comment={value}"]})
        (script,) = write_job(held.out, slurm_job(held), "private")
        number = jobs.cluster.call("sbatch", "--parsable", str(script)).strip()
        shown = jobs.cluster.call("scontrol", "show", "job", number)
        jobs.cluster.call("scancel", number)
        assert f"   Comment={value} \n" in shown or f"   Comment={value}\n" in shown, (value, shown)


@pytest.mark.cluster
@pytest.mark.slow
class TestCycles:
    def test_a_job_whose_time_ends_saves_and_finishes_in_later_starts(self, jobs: Jobs, tiny: Tiny) -> None:
        """The final weights are those of a run that nothing has interrupted, bit for bit."""
        run, steps = jobs.folder / "run", 4000  # more than one start can do, on a quiet machine too
        config = tiny(
            output_dir=str(run), max_steps=steps, save_strategy="steps", save_steps=100_000, use_cpu=True
        )
        number = jobs.submit(config, "--nodes", "2", "--time", "2m", "launch.save_seconds=45")
        self_ended = jobs.ended(number)
        text = jobs.out()
        assert self_ended == "COMPLETED", text
        assert "saved, and can go on; the same job starts again" in text
        assert "the run resumes from step-" in text
        whole = jobs.folder / "whole"
        again = {**config, "training": {**config["training"], "output_dir": str(whole)}}
        yaml = write_yaml(jobs.folder / "whole.yaml", again)
        assert jobs.paceline("train", str(yaml), "--nproc", "2").code == 0
        assert weights(run, steps) == weights(whole, steps) != {}

    def test_a_requeue_resumes_and_a_cancelled_job_stays_so(self, jobs: Jobs, tiny: Tiny) -> None:
        run = jobs.folder / "run"
        config = tiny(
            output_dir=str(run), max_steps=100_000, save_strategy="steps", save_steps=50, use_cpu=True
        )
        number = jobs.submit(config, "--nodes", "2", "--time", "1h")
        jobs.under_way(run, 60)
        jobs.cluster.call("scontrol", "requeue", number)
        jobs.until(lambda: "the run resumes from step-" in jobs.out(), "the job resumes")
        jobs.until(lambda: jobs.cluster.state(number) == "RUNNING", "the job runs")
        assert not list(jobs.folder.glob("run-launch/failures-*"))  # an administrator's requeue is no failure
        time.sleep(3)
        jobs.cluster.call("scancel", number)
        assert jobs.ended(number) == "CANCELLED"
        time.sleep(8)  # longer than the delay of a requeue
        assert jobs.cluster.state(number) == "CANCELLED"

    def test_stop_status_and_resume_through_slurm(self, jobs: Jobs, tiny: Tiny) -> None:
        run = jobs.folder / "run"
        config = tiny(output_dir=str(run), max_steps=100_000, save_strategy="no", use_cpu=True)
        number = jobs.submit(config, "--nodes", "2", "--time", "1h", "launch.nproc=2")  # two ranks a node
        jobs.under_way(run, 5)
        assert f"job {number}: RUNNING on node[1-2]" in jobs.paceline("status", str(run)).out
        assert jobs.paceline("resume", str(run)).code == 2  # it runs
        assert jobs.paceline("stop", str(run)).code == 0
        assert jobs.ended(number) == "FAILED"  # with 75, and for good
        assert "stopped by paceline stop" in jobs.out()
        assert "stopped, step" in jobs.paceline("status", str(run)).out
        resumed = jobs.paceline("resume", str(run))
        assert resumed.code == 0, resumed.err
        later = resumed.out.split()[-1]
        jobs.until(lambda: "the run resumes from step-" in jobs.out(), "the new job resumes")
        assert jobs.paceline("stop", str(run)).code == 0
        jobs.ended(later)

    def test_a_lost_node_starts_the_job_again_where_it_was(self, jobs: Jobs, tiny: Tiny) -> None:
        run = jobs.folder / "run"
        config = tiny(output_dir=str(run), max_steps=400, save_strategy="steps", save_steps=50, use_cpu=True)
        number = jobs.submit(config, "--nodes", "2", "--time", "1h")
        jobs.under_way(run, 60)
        lost = [*node_processes("node2")]
        jobs.cluster.kill_node("node2")
        for pid in lost:
            subprocess.run(["kill", f"-{signal.SIGKILL}", pid], check=False)
        jobs.until(lambda: jobs.cluster.state(number) in ("PENDING", "REQUEUED"), "the job waits")
        jobs.cluster.start_node("node2")
        assert jobs.ended(number) == "COMPLETED", jobs.out()
        assert "the run resumes from step-" in jobs.out()

    def test_an_array_of_three(self, jobs: Jobs, tiny: Tiny) -> None:
        config = tiny(
            output_dir=str(jobs.folder / "run"),
            max_steps=3,
            save_strategy="steps",
            save_steps=3,
            use_cpu=True,
        )
        number = jobs.submit(config, "--sweep", "training.seed=1,2,3", "launch.array_limit=1")
        for task in range(3):
            assert jobs.ended(f"{number}_{task}") == "COMPLETED", jobs.out()
        runs = [jobs.folder / "run-sweep" / f"seed={seed}" for seed in (1, 2, 3)]
        assert len({weights(run, 3)[name] for run in runs for name in list(weights(run, 3))[:1]}) == 3


def node_processes(node: str) -> Iterator[str]:
    """The processes of Slurm's steps on a node, by the name in their environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"SLURMD_NODENAME={node}".encode() in environ.split(b"\0"):
            yield folder.name
