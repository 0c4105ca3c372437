"""The tests of the emulated device, on this machine's card: a wait of the host inside a micro-batch raises
(``torch.cuda.set_sync_debug_mode("error")``), losses are held to the CPU's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_check import Broken

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tests" / "unit" / "device"
sys.path.append(str(DEVICE))
from real_device import ON_CARD, VARIABLE  # noqa: E402

SUITE_SECONDS = 240
WIDE = 300  # columns of pytest's lines: in fewer it names tests without the reason
#: file -> its tests that can run on a card
TESTS = {
    "test_device_families.py": ("test_a_family_trains_as_on_a_cpu",),
    "test_device_parity.py": (
        "test_sft_trains_as_on_a_cpu",
        "test_pairs_train_as_on_a_cpu",
        "test_adapters_train_as_on_a_cpu",
    ),
    "test_device_budgets.py": (
        "test_a_window_and_a_micro_batch_wait_for_nothing",
        "test_an_optimizer_that_cannot_skip_costs_one_wait_more",
    ),
}


def suite(started: Callable[..., Any] = subprocess.Popen) -> tuple[str, str]:
    """Run them; what pytest counts."""
    chosen = [str(DEVICE / f"{file}::{name}") for file, names in TESTS.items() for name in names]
    process = started(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, VARIABLE: ON_CARD, "COLUMNS": str(WIDE)},
    )
    try:
        out, _ = process.communicate(timeout=SUITE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Broken(f"no end within {SUITE_SECONDS} s") from None
    lines = [line for line in out.splitlines() if line.strip()] or ["pytest printed nothing"]
    if process.returncode:
        failed = sorted(line for line in lines if line.startswith(("FAILED", "ERROR")))  # errors first
        raise Broken("; ".join([lines[-1], *(line.replace(f"{DEVICE}/", "") for line in failed[:30])]))
    return "holds", f"{lines[-1].strip('= ')}; no wait of the host inside a micro-batch"
