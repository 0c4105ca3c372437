"""Two nodes that do not share the run directory, on one machine: each has a working directory of its own, and
``output_dir`` is a path below it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from ranks import collect, free_port
from support import Run, worker_environment, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Notice, Step, read_events

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
HERE = "/proc/self/cwd/run"  # another folder in each process's working directory
SECRET = {"PACELINE_STORE_SECRET": "apart-and-yet-together"}
STEPS = 4
FSDP = {
    "distributed_strategy": "fsdp",
    "fsdp": "full_shard",
    "save_strategy": "steps",
    "save_steps": 2,
    "max_steps": STEPS,
    "output_dir": HERE,
}


def train(yaml: Path, folders: list[Path], *more: str) -> tuple[list[int], list[str]]:
    """``paceline train`` once a node, with one process each; node i works in ``folders[i]``."""
    port, processes = str(free_port()), []
    for node, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        flags = ["--nproc", "1", "--nnodes", str(len(folders)), "--node-rank", str(node)]
        meeting = ["--master-addr", "127.0.0.1", "--master-port", port]
        argv = [sys.executable, "-m", "paceline.cli.main", "train", str(yaml), *flags, *meeting, *more]
        processes.append(
            warm.Popen(
                argv,
                env=worker_environment(SECRET),
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    return collect(processes, 200)


def events(folder: Path, kind: type) -> list[Any]:
    return [r.event for r in read_events(RunDir.at(folder / "run").events(0)) if isinstance(r.event, kind)]


def losses(folder: Path) -> dict[int, float]:
    return {event.step: event.loss for event in events(folder, Step)}


def codes_of(folder: Path) -> list[str]:
    return [event.diagnostic.code for event in events(folder, Notice)]


def checkpoint(folder: Path, step: int) -> Path:
    return RunDir.at(folder / "run").checkpoint(step)


def test_two_nodes_save_and_go_on_in_the_other_order(
    tiny: Tiny, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path / "apart.yaml", tiny(**FSDP))
    a, b = tmp_path / "a", tmp_path / "b"
    codes, outs = train(yaml, [a, b])
    assert codes == [0, 0], outs
    whole = losses(a)
    assert list(whole) == [1, 2, 3, 4] and codes_of(a).count("checkpoint.apart") == 1
    assert outs[0].count("output_dir is another folder on each node: shards stay on their nodes") == 1
    assert [path.name for path in checkpoint(b, 4).glob("*.safetensors")] == [
        "shard-00001-of-00002.safetensors"
    ]
    plans = [json.loads((node / "run/plan.json").read_text()) for node in (a, b)]
    assert plans[0] == plans[1] and not (b / "run/result.json").exists()
    # One node's folder alone is no checkpoint, and says why.
    listed = paceline("checkpoints", "list", str(a / "run"))
    assert "the shards of ranks 1" in listed.out, listed
    # The nodes come back in the other order, one without the newest step: what each lacks is fetched.
    shutil.rmtree(checkpoint(b, 4))
    codes, outs = train(yaml, [b, a], "--resume", "latest")
    assert codes == [0, 0], outs
    assert "step-00000004 is skipped: no node has shard-00001-of-00002.safetensors" in outs[0]
    assert "2 steps are trained again" in outs[0]
    assert losses(b) == {3: whole[3], 4: whole[4]}
    assert (checkpoint(b, 2) / "state.json").exists() and codes_of(b).count("resume.chosen") == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_losses_are_those_of_a_shared_disk(asynchronous: bool, tiny: Tiny, tmp_path: Path) -> None:
    """And those after a resume: on the same nodes, with an emptied disk, under another strategy."""
    yaml = write_yaml(tmp_path / "apart.yaml", tiny(**{**FSDP, "save_async": asynchronous, "max_steps": 6}))
    a, b, shared = (tmp_path / name for name in ("a", "b", "shared"))
    for folders in ([a, b], [shared, shared]):
        codes, outs = train(yaml, folders)
        assert codes == [0, 0], outs
    whole = losses(shared)
    assert losses(a) == whole and "checkpoint.apart" not in codes_of(shared)
    for node in (a, b):
        shutil.rmtree(checkpoint(node, 6))
    # The same nodes, another strategy: each reads what the other wrote, and both are whole then.
    codes, outs = train(
        yaml, [a, b], "training.distributed_strategy=ddp", "training.fsdp=null", "--resume", "latest"
    )
    assert codes == [0, 0], outs
    assert {step: losses(a)[step] for step in (5, 6)} == pytest.approx({5: whole[5], 6: whole[6]}, abs=2e-6)
    assert sorted(p.name for p in checkpoint(b, 4).iterdir()) == sorted(
        p.name for p in checkpoint(a, 4).iterdir()
    )
    # A new machine in the place of the first.
    shutil.rmtree(a)
    shutil.rmtree(checkpoint(b, 6))
    codes, outs = train(yaml, [a, b], "--resume", "latest")
    assert codes == [0, 0], outs
    assert losses(a) == {5: whole[5], 6: whole[6]}


@pytest.mark.slow
def test_what_no_node_has_is_named_on_all(tiny: Tiny, tmp_path: Path) -> None:
    yaml = write_yaml(tmp_path / "apart.yaml", tiny(**FSDP))
    a, b = tmp_path / "a", tmp_path / "b"
    codes, outs = train(yaml, [a, b])
    assert codes == [0, 0], outs
    shutil.rmtree(b)
    codes, outs = train(yaml, [a, b], "--resume", "latest")
    assert codes[0] and codes[1], outs
    for out in outs[:1]:
        assert "resume.only_incomplete" in out and "no node has shard-00001-of-00002" in out, out
        assert "Asked: " in out and not (b / "run/checkpoints/step-00000004").exists()
