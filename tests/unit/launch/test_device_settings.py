"""Variables for the accelerator: set where they help, and never in place of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.rundir import RunDir
from paceline.launch.environment import device_variables as module
from paceline.launch.environment.device_variables import device_settings
from paceline.launch.environment.guide_variables import set_defaults
from paceline.plan.hardware.probe_results import Wheel

PRODUCTS = """
import torch

def used():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def product(rows):
    torch.nn.functional.linear(torch.ones(rows, 256, dtype=torch.bfloat16), weight)

weight = torch.ones(512, 256, dtype=torch.bfloat16)
product(1), product(900)
before = used()
for rows in range(2, 702):
    product(rows)
print(used() - before)
"""


@pytest.fixture(autouse=True)
def cuda_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_wheel", lambda: Wheel("2.13.0+cu130", cuda="13.0"))


def settings(root: Path, device: str = "cuda", world_size: int = 2, **environ: str) -> dict[str, str]:
    found = device_settings(environ, device, world_size, RunDir.at("/run/x"), root)
    assert all(why for _, why in found.values())
    return {name: value for name, (value, _) in found.items()}


def test_cuda_has_the_allocator_and_the_flight_recorder(tmp_path: Path) -> None:
    assert settings(tmp_path) == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/run/x/events/nccl_trace_rank_",
    }
    assert set(settings(tmp_path, world_size=1)) == {"PYTORCH_ALLOC_CONF"}
    assert settings(tmp_path, device="xpu") == {}


def test_rows_of_many_lengths_do_not_fill_a_cpus_memory_with_kernels(tmp_path: Path) -> None:
    """700 lengths of a row in bfloat16: 480 MiB of compiled products where nothing bounds them."""
    own = {"LRU_CACHE_CAPACITY": "7", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}
    assert settings(tmp_path, "cpu", **own) == {}
    environ = {**os.environ, **settings(tmp_path, "cpu"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 160 << 20


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512", "TORCH_FR_BUFFER_SIZE": "0"}
    assert set(settings(tmp_path, **own)) == {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"}


def test_segments_do_not_expand_on_rocm_and_in_windows_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert settings(tmp_path, world_size=1) == {}
    monkeypatch.setattr(module, "installed_wheel", lambda: Wheel("2.13.0+rocm7.1", hip="7.1"))
    assert settings(tmp_path / "elsewhere", world_size=1) == {}


@pytest.mark.parametrize(
    ("card", "driver", "off"),
    [
        ("NVIDIA GeForce RTX 4090", "535.183.01", True),
        ("NVIDIA GeForce RTX 4090", "550.54.15", False),
        ("NVIDIA GeForce RTX 3090", "535.183.01", False),
        ("NVIDIA A100-SXM4-80GB", "535.183.01", False),
    ],
)
def test_cards_without_peer_to_peer_under_a_driver_that_offers_it(
    tmp_path: Path, card: str, driver: str, off: bool
) -> None:
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text(f"Model: \t\t {card}\nIRQ:   \t\t 120\n")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text(driver + "\n")
    assert ("NCCL_P2P_DISABLE" in settings(tmp_path)) is off
    assert "NCCL_P2P_DISABLE" not in settings(tmp_path, world_size=1)


def test_they_are_set_in_this_process_and_keep_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "")
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    set_defaults({"NCCL_P2P_DISABLE": "1", "TORCH_FR_BUFFER_SIZE": "2000"})
    import os

    assert (os.environ["NCCL_P2P_DISABLE"], os.environ["TORCH_FR_BUFFER_SIZE"]) == ("0", "2000")
