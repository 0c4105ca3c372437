"""The programs of clusters are asked anew (``scripts/test --peers``) what they make of the files for them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import clusters
from ask import ask
from remote_jobs import KUBERNETES, job_in, rendered, texts

pytestmark = [pytest.mark.peers, pytest.mark.timeout(7200)]
HOSTILE = texts(200)
VARIABLES = {f"V{number}": text for number, text in enumerate(HOSTILE)}
OVERRIDES = tuple(f"training.run_name={text}" for text in HOSTILE)


def hostile(system: str, folder: Path, kind: str = "trainjob") -> Any:
    options = {**KUBERNETES, "kind": kind}
    return rendered(system, job_in(folder, env=VARIABLES, overrides=OVERRIDES, site={"kubernetes": options}))


def judge(folder: Path) -> None:
    """Ask each program; record the digests of what it takes."""
    golden = clusters.examples(folder)
    manifests = [golden[f"{kind}.yaml"] for kind in (*clusters.KINDS, "servers")]
    manifests += [hostile("kubernetes", folder, kind).files["job.yaml"] for kind in clusters.KINDS]
    assert ask("kubernetes", "judge", manifests, folder) == [[]] * len(manifests)

    task = clusters.example("skypilot", folder).files["task.yaml"]
    full, given = ask("skypilot", "task", [task, hostile("skypilot", folder).files["task.yaml"]], folder)
    assert full["num_nodes"] == 4 and full["accelerators"] == {"H100": 8}
    assert full["recovery"]["recover_on_exit_codes"] == [75]
    assert full["run"] == yaml.safe_load(task)["run"] and VARIABLES.items() <= given["envs"].items()

    task = clusters.example("dstack", folder).files["task.dstack.yml"]
    full, given = ask("dstack", "task", [task, hostile("dstack", folder).files["task.dstack.yml"]], folder)
    assert full["nodes"] == 4 and full["env"]["HF_TOKEN"] == "value of hub"
    assert full["resources"]["gpu"]["count"] == {"min": 8, "max": 8}
    assert VARIABLES.items() <= given["env"].items()
    clusters.RECORDED.write_text(json.dumps(clusters.digests(golden), indent=1) + "\n", encoding="utf-8")


def test_every_file_is_read_as_it_is_meant(tmp_path: Path) -> None:
    judge(tmp_path)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_adds_the_secret_and_keeps_the_order(tmp_path: Path) -> None:
    rendering = clusters.example("kubernetes", tmp_path)
    for name, text in rendering.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "store-secret").write_text("of the run")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    objects = list(yaml.safe_load_all(done.stdout))
    assert [one["kind"] for one in objects] == ["ConfigMap", "TrainingRuntime", "TrainJob", "Secret"]
    assert objects[:3] == list(yaml.safe_load_all(rendering.files["job.yaml"]))
    assert objects[3]["metadata"] == {"name": "my-run-store", "namespace": "research"}
