"""The guide's commands, word for word but for the number of processes and steps: each trains and leaves a
complete run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 550
STEPS = 2
LAUNCHERS_LEFTOVERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "TORCHELASTIC_",
    "OMPI_",
    "SLURM_",
    "PMI_",
    "ACCELERATE_",
    "FSDP_",
    "PACELINE_",
    "NCCL_",
)


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}"


class Guide:
    """Runs command lines in the checkout, with this interpreter's programs first on PATH, into a run
    directory of the test. ``python`` is this interpreter, so that it starts warm.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.run_dir = folder / "run"
        self.environ = {
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith(LAUNCHERS_LEFTOVERS) and k != "PYTHONPATH"
            },
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PACELINE_CACHE": str(cache),
            "PACELINE_TRAINING__OUTPUT_DIR": str(self.run_dir),
            "PACELINE_TRAINING__MAX_STEPS": str(STEPS),
            "PACELINE_TRAINING__EVAL_STRATEGY": "no",
        }

    def start(self, line: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        words = shlex.split(line.replace("\\\n", " "))
        words[0] = shutil.which(words[0], path=self.environ["PATH"]) or words[0]
        words[0] = sys.executable if Path(words[0]).name == "python" else words[0]
        environ = {**self.environ, **(extra or {})}
        return subprocess.Popen(
            words,
            cwd=ROOT,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __call__(self, line: str, extra: Mapping[str, str] | None = None) -> Finished:
        return finish(self.start(line, extra))

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "result.json").read_text()))

    def check(self, world_size: int) -> None:
        """The run is complete: its result, a plan for ``world_size``, and every step on every rank."""
        result = self.result()
        assert (result["outcome"], result["step"], result["world_size"]) == ("completed", STEPS, world_size)
        assert json.loads((self.run_dir / "plan.json").read_text())["world_size"] == world_size
        for rank in range(world_size):
            lines = (self.run_dir / "events" / f"rank-{rank:05d}.events.jsonl").read_text().splitlines()
            steps = [event["step"] for event in map(json.loads, lines) if event["kind"] == "step"]
            assert steps == list(range(1, STEPS + 1)), f"rank {rank}: {steps}"
        assert (self.run_dir / "logs" / "training.log").stat().st_size > 0
        assert (self.run_dir / "checkpoints" / "latest").exists()


def finish(process: subprocess.Popen[str]) -> Finished:
    """Wait, and leave nothing behind."""
    try:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        pytest.fail(f"did not finish within {DEADLINE_SECONDS} s\n{out[-4000:]}\n{err[-4000:]}")
    return Finished(process.returncode, out, err)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def guide(tmp_path: Path, cache: Path) -> Guide:
    return Guide(tmp_path, cache)


def test_alone(guide: Guide) -> None:
    done = guide("python main.py --config config.yaml --mode train --algorithm sft")
    assert done.code == 0, done.text
    guide.check(world_size=1)


@pytest.mark.slow
def test_the_launcher_script_on_four_processes(guide: Guide) -> None:
    done = guide(
        "python scripts/run_distributed.py --nproc_per_node 4 --config config_distributed_example.yaml"
        " --algorithm sft"
    )
    assert done.code == 0, done.text
    guide.check(world_size=4)


@pytest.mark.slow
def test_the_launcher_script_with_torchrun(guide: Guide) -> None:
    done = guide(
        "python scripts/run_distributed.py --use_torchrun --nproc_per_node 2 --config"
        " config_distributed_example.yaml"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["", "--use_torchrun"])
def test_two_nodes_on_loopback(flag: str, guide: Guide) -> None:
    port = free_port()
    guide.environ["PACELINE_STORE_SECRET"] = "0123456789abcdef"
    nodes = [
        guide.start(
            f"python scripts/run_distributed.py {flag} --nproc_per_node 1 --nnodes 2 --node_rank {node}"
            f" --master_addr 127.0.0.1 --master_port {port} --config config_distributed_example.yaml"
        )
        for node in (1, 0)  # the second node may well be there first
    ]
    for done in [finish(node) for node in nodes]:
        assert done.code == 0, done.text
    guide.check(world_size=2)
    assert json.loads((guide.run_dir / "plan.json").read_text())["num_nodes"] == 2


def test_torchrun(guide: Guide) -> None:
    done = guide(
        "torchrun --nproc_per_node=2 main.py --mode train --config config_distributed_example.yaml"
        " --algorithm sft"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
def test_torch_distributed_launch(guide: Guide) -> None:
    done = guide(
        "python -W ignore -m torch.distributed.launch --nproc_per_node=2 main.py --mode train "
        "--config config_distributed_example.yaml --algorithm sft"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["--local-rank={rank}", "--local_rank={rank}"])
def test_both_spellings_of_local_rank(spelling: str, guide: Guide) -> None:
    port = free_port()
    ranks = [
        guide.start(
            f"python main.py {spelling.format(rank=rank)} --mode train --config"
            " config_distributed_example.yaml --algorithm sft",
            {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for rank in (0, 1)
    ]
    for done in [finish(rank) for rank in ranks]:
        assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("accelerate", path=str(Path(sys.executable).parent)) is None,
    reason="accelerate is not installed",
)
def test_accelerate_launch(guide: Guide) -> None:
    done = guide(
        "accelerate launch --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
        f" --multi_gpu --main_process_port {free_port()} main.py --config config_distributed_example.yaml"
        " --mode train --algorithm sft"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun(guide: Guide) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = guide(
        "mpirun -np 2 --oversubscribe --bind-to none python main.py --config config_distributed_example.yaml"
        " --mode train",
        root,
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("accelerate", path=str(Path(sys.executable).parent)) is None,
    reason="accelerate is not installed",
)
@pytest.mark.parametrize("program", ["main.py --config {0}", "-m paceline train {0}"])
def test_options_of_accelerate_launch_count(program: str, guide: Guide, tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines:"
        " 1\nnum_processes: 2\nuse_cpu: false\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy:"
        " TRANSFORMER_BASED_WRAP}\n"
    )
    done = guide(
        f"accelerate launch --config_file {tmp_path}/accelerate.yaml --main_process_port {free_port()}"
        f" {program.format('config_distributed_example.yaml')}"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)
    assert guide.result()["strategy"] == "fsdp"
    assert "2 processes, cpu, fsdp" in done.out and "bfloat16" in done.out, done.text
    assert "launch.option_wins" in done.err + done.out  # the YAML says ddp


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="MPICH is not installed")
@pytest.mark.parametrize("program", ["python main.py --config {0}", "python -m paceline train {0}"])
def test_hydra(program: str, guide: Guide) -> None:
    done = guide(f"mpiexec.hydra -n 2 {program.format('config_distributed_example.yaml')}")
    assert done.code == 0, done.text
    guide.check(world_size=2)


@pytest.mark.slow
def test_the_modern_command_inside_torchrun(guide: Guide) -> None:
    done = guide("torchrun --nproc_per_node=2 -m paceline train config_distributed_example.yaml")
    assert done.code == 0, done.text
    guide.check(world_size=2)


def test_the_modern_command_and_the_prepared_data(guide: Guide, tmp_path: Path) -> None:
    guide.environ["PACELINE_CACHE"] = str(tmp_path / "cache")
    first = guide("python prepare_datasets.py --config config.yaml")
    assert first.code == 0, first.text
    again = guide("python prepare_datasets.py --config config.yaml")
    assert again.code == 0, again.text
    done = guide("python -m paceline.cli.main train config.yaml training.learning_rate=1e-4 --nproc 2")
    assert done.code == 0, done.text
    guide.check(world_size=2)
    assert json.loads((guide.run_dir / "config.json").read_text())["training"]["learning_rate"] == 1e-4


def test_the_environment_variables_of_the_guide_are_translated(guide: Guide) -> None:
    done = guide(
        "python -m paceline.cli.main plan config_distributed_example.yaml --nproc 2 --json",
        {"NCCL_TIMEOUT": "900", "NCCL_IB_DISABLE": "1"},
    )
    assert done.code == 0, done.text
    # the file's own ddp_timeout is a lower layer than the environment
    assert json.loads(done.out)["timeout_seconds"] == 900
    assert "NCCL_TIMEOUT" in done.err and "NCCL_IB_DISABLE" in done.err


def test_a_port_in_use_is_named(guide: Guide) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = guide(
            f"python scripts/run_distributed.py --master_port {port} --nproc_per_node 2 --config"
            " config_distributed_example.yaml"
        )
    assert done.code == 2, done.text
    assert str(port) in done.err and "Traceback" not in done.err


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed")
def test_deepspeed(guide: Guide) -> None:
    done = guide(
        f"deepspeed --num_gpus=2 --master_port={free_port()} main.py --config config_deepspeed_example.yaml"
        " --mode train --algorithm sft"
    )
    assert done.code == 0, done.text
    guide.check(world_size=2)
    assert guide.result()["strategy"] == "deepspeed"


@pytest.mark.slow
def test_a_second_run_does_not_overwrite_the_first(guide: Guide) -> None:
    guide.environ["PACELINE_TRAINING__OVERWRITE_OUTPUT_DIR"] = "false"
    assert guide("python main.py --config config.yaml").code == 0
    before = (guide.run_dir / "result.json").read_text()
    done = guide("torchrun --nproc_per_node=1 main.py --config config.yaml")
    assert done.code != 0, done.text
    assert "run.exists" in done.err and (guide.run_dir / "result.json").read_text() == before
