"""Files for clusters: those that are kept as golden ones, and what their programs have said of them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "schedulers"))

from remote_jobs import KUBERNETES, SITE, job_in, rendered  # noqa: E402

from paceline.schedulers.job import Rendering, ServedModel  # noqa: E402

GOLDEN = HERE.parent / "golden" / "clusters"
RECORDED = HERE / "recorded" / "clusters.json"
SERVED = ServedModel("org/model", 4096, revision="v1")
KINDS = ("trainjob", "jobset", "job", "pytorchjob")
SECRETS = {
    "kubernetes": {"HF_TOKEN": "hub/token"},
    "skypilot": {"HF_TOKEN": "HF_TOKEN"},
    "dstack": {"HF_TOKEN": "hub"},
    "ray": {"HF_TOKEN": "/etc/hub"},
}


GANG = {"image": "vllm/vllm-openai:v0.32.0", "count": 2, "gpus": 4, "arguments": ["--enable-lora"]}


def example(system: str, folder: Path, kind: str = "trainjob", *, servers: bool = False) -> Rendering:
    """Return the job of a system with all that a site may want."""
    mounts = ["s3://data:/data"] if system == "skypilot" else ["data:/data"]
    site = {
        **SITE,
        "mounts": [] if system == "ray" else mounts,
        "kubernetes": {**KUBERNETES, "kind": kind, **({"servers": GANG} if servers else {})},
        "skypilot": {"infra": "aws/us-east-1", "use_spot": True, "setup": ["pip install paceline"]},
        "dstack": {"backends": ["aws"], "fleets": ["h100"], "spot": True},
        "time_limit": "12h",
    }
    return rendered(system, job_in(folder, site=site, secrets=SECRETS[system], served=SERVED))


def examples(folder: Path) -> dict[str, str]:
    """Return the golden files by name, without the place of this machine's folder."""
    texts = {f"{kind}.yaml": example("kubernetes", folder, kind).files["job.yaml"] for kind in KINDS}
    texts["servers.yaml"] = example("kubernetes", folder, servers=True).files["job.yaml"]
    texts["kustomization.yaml"] = example("kubernetes", folder).files["kustomization.yaml"]
    texts["skypilot.yaml"] = example("skypilot", folder).files["task.yaml"]
    texts["dstack.yml"] = example("dstack", folder).files["task.dstack.yml"]
    texts["dstack-node.sh"] = example("dstack", folder).files["node.sh"]
    texts["ray.json"] = example("ray", folder).files["ray/task.json"]
    return {name: text.replace(str(folder), "/home/user") for name, text in texts.items()}


def digests(texts: dict[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def write(folder: Path) -> None:
    """Write the golden files anew; what the programs say of them is recorded by the test that asks them."""
    GOLDEN.mkdir(exist_ok=True)
    for name, text in examples(folder).items():
        (GOLDEN / name).write_text(text, encoding="utf-8")


def recorded() -> dict[str, str]:
    """Return the digests of the files that their programs have read without a finding."""
    found: dict[str, str] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
