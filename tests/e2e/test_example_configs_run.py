"""``python main.py --config configs/X.yaml --algorithm X``: each config trains on the files of the checkout.

Those of distillation name models of the hub and are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.config.load import load_config

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
OF_THE_HUB = {"distillation", "gkd"}
CHEAP = {"dpo"}  # in the default suite; the others behind the slow marker
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml") if path.stem not in OF_THE_HUB)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_config_trains_on_what_is_shipped(name: str, tmp_path: Path) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    algorithm = load_config(str(path)).config.training.algorithm
    command = [sys.executable, "main.py", "--config", str(path), "--algorithm", str(algorithm)]
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PACELINE_CACHE": str(tmp_path / "cache"),
        "PACELINE_TRAINING__OUTPUT_DIR": str(tmp_path / "run"),
        "PACELINE_TRAINING__MAX_STEPS": "2",
    }
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["step"]) == ("completed", 2)
    trained = json.loads((tmp_path / "run" / "config.json").read_text())
    assert trained["training"]["algorithm"] == algorithm
