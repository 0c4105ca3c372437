"""Ray 2.60 itself: two nodes train, save and go on, and the job's code is that of the node that failed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ask import HERE, interpreter
from support import ROOT, TINY_LLAMA, write_rows, write_tokenizer, write_yaml

from paceline.checkpoint.format.verify_files import read_state
from paceline.config.load import load_config
from paceline.core.rundir import RunDir
from paceline.schedulers.check_job import JobRequest, job_of
from paceline.schedulers.ray.job import ray_job
from paceline.schedulers.write_files import write_job

pytestmark = [
    pytest.mark.peers,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root"),
]
STEPS, RANK = 24, r"training\.rank"


def submitted(folder: Path, name: str, **training: Any) -> list[str]:
    """Write a job of two nodes with one rank each; return the command that hands it to Ray."""
    config = {
        "model": {"config": {**TINY_LLAMA, "tie_word_embeddings": False}, "tokenizer": str(folder / "tok")},
        "data": {"train": str(folder / "rows.json"), "max_length": 96, "cache_dir": str(folder / "cache")},
        "training": {
            "output_dir": str(folder / name),
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "save_strategy": "steps",
            "save_steps": 4,
            "report_to": "none",
            "seed": 7,
            "use_cpu": True,
            **training,
        },
        "launch": {
            "nnodes": 2,
            "nproc": 1,
            "gpus_per_node": 0,
            "save_seconds": 60,
            "max_restarts": 1,
            "ray": {"address": "http://10.9.0.1:8265"},
            "env": {"OMP_NUM_THREADS": "1", "PACELINE_LEDGER": "off"},
        },
    }
    file = write_yaml(folder / f"{name}.yaml", config)
    request = JobRequest(file, (), "ray", ("paceline",), folder)
    job = job_of(load_config(str(file)).config, request, 0, None)
    rendering = ray_job(job)
    write_job(job.out, rendering, "private")
    (command,) = rendering.submit
    return list(command)


def answers(folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    libraries = sysconfig.get_paths()["purelib"]
    python = interpreter("ray")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:  # of Unix sockets
        question, answer = folder / "question.json", folder / "answer.json"
        question.write_text(json.dumps({"folder": short, "jobs": jobs}))
        env = {
            **os.environ,
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{libraries}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        script = str(HERE / "inside" / "ray_cluster.py")
        command = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc", python, script]
        done = subprocess.run(
            [*command, str(question), str(answer)], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: list[dict[str, Any]] = json.loads(answer.read_text())
        return found


def test_two_nodes_train_save_go_on_and_answer_for_themselves(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "rows.json", 60)
    whole, parted, killed = (RunDir.at(tmp_path / name) for name in ("whole", "parted", "killed"))
    first_save = str(parted.checkpoint(4))
    jobs: list[dict[str, Any]] = [
        {"submit": submitted(tmp_path, "whole")},
        {"submit": submitted(tmp_path, "parted"), "at": first_save},
        {"submit": submitted(tmp_path, "parted")},
        {"submit": submitted(tmp_path, "killed"), "at": str(killed.checkpoint(4)), "kill": RANK},
    ]
    one, stopped, resumed, restarted = answers(tmp_path, jobs)

    assert one["status"] == "SUCCEEDED", one["log"][-3000:]
    # SIGTERM of `ray job stop` → saved on both nodes → 75, and nothing starts again
    assert stopped["status"] in ("STOPPED", "FAILED"), stopped
    assert "exit code 75: stopped" in stopped["log"], stopped["log"][-3000:]
    assert resumed["status"] == "SUCCEEDED", resumed["log"][-3000:]
    assert restarted["status"] == "SUCCEEDED", restarted["log"][-3000:]
    assert "all nodes start again; failures so far: 1 of 1" in restarted["log"]
    ends = [read_state(run.checkpoint(STEPS)) for run in (whole, parted, killed)]
    assert len({json.dumps(_weights(run), sort_keys=True) for run in (whole, parted, killed)}) == 1, ends


def _weights(run: RunDir) -> dict[str, str]:
    """The digests of the last checkpoint's tensors."""
    import hashlib

    files = sorted(run.checkpoint(STEPS).rglob("*.safetensors"))
    assert files
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
