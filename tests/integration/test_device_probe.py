"""The child that asks torch, started for real: what it prints is what the planner reads."""

from __future__ import annotations

import os

import pytest
import torch

from paceline.plan.hardware import probe as ask
from paceline.plan.hardware.device_files import installed_wheel


def test_the_child_answers_for_the_torch_that_is_installed() -> None:
    answer, silence = ask.query_torch(os.environ, installed_wheel(), None)
    assert answer is not None, silence
    assert (answer.version, answer.cuda) == (torch.__version__, torch.version.cuda)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    assert answer.type == (accelerator.type if accelerator else None)
    assert len(answer.devices) == (torch.accelerator.device_count() if accelerator else 0)


@pytest.mark.fresh
def test_a_child_that_dies_or_hangs_is_told_and_ends_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(ask, "PROBE_MODULE", "paceline.no_such_module")
    answer, silence = ask.query_torch(os.environ, installed_wheel(), None)
    assert answer is None and "no_such_module" in silence
    monkeypatch.setattr(ask, "PROBE_MODULE", "http.server")
    monkeypatch.setattr(ask, "TORCH_SECONDS", 0.5)
    assert ask.query_torch(os.environ, installed_wheel(), None) == (None, "torch found no devices within 0 s")
