"""``training.full_determinism``: what torch and its libraries need is set, and nothing without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core.rundir import RunDir
from paceline.launch.environment import device_variables as settings_module
from paceline.launch.environment.device_variables import device_settings
from paceline.plan.hardware.probe_results import Wheel
from paceline.runtime.device.device import use_deterministic_kernels
from paceline.training import worker


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark


def test_an_operation_without_a_deterministic_kernel_raises_by_name() -> None:
    def unordered() -> Any:  # of the operations that have none on a CPU
        return torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)

    unordered()
    use_deterministic_kernels()
    with pytest.raises(RuntimeError, match="put_ .*deterministic"):
        unordered()


@pytest.mark.parametrize("asked", [True, False])
def test_a_rank_uses_them_if_asked(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    training = SimpleNamespace(full_determinism=asked)
    start: Any = SimpleNamespace(config=SimpleNamespace(training=training, lora=None))
    for name in ("startup.prepare_data", "quiet_libraries", "keep_compiled_code_private", "RunRecord"):
        monkeypatch.setattr(f"paceline.training.worker.{name}", lambda *_, **__: None)
    env: Any = SimpleNamespace(rank=0, local_world_size=1, num_nodes=1)
    plan: Any = SimpleNamespace(limits=SimpleNamespace(meet_seconds=1.0))
    worker.prepare_run(start, env, plan, {"OMP_NUM_THREADS": "1"}, None)  # type: ignore[arg-type]
    assert torch.are_deterministic_algorithms_enabled() is asked


def test_cuda_libraries_are_told_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "installed_wheel", lambda: Wheel("2.13.0+cu130", cuda="13.0"))

    def told(device: str, deterministic: bool) -> set[str]:
        return set(device_settings({}, device, 1, RunDir.at("/run/x"), tmp_path, deterministic=deterministic))

    own = {"CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC"}
    assert told("cuda", True) - told("cuda", False) == own
    assert told("cpu", True) == told("cpu", False)
