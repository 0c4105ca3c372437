"""Every family that Paceline trains, on an emulated card in 16 bits as on a CPU: what only one of them
computes (a norm, an activation, a state) is met here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from device_steps import train

sys.path.append(str(Path(__file__).parents[1] / "models"))
from tiny_families import tiny_config  # noqa: E402

from paceline.plan.model.supported import supported  # noqa: E402

CLOSE = 5e-4  # of losses near 5
#: Every twelfth in the fast tier; ``test_device_families`` has those with kernels of their own.
SOME = [
    pytest.param(kind, marks=() if n % 24 == 0 else pytest.mark.full) for n, kind in enumerate(supported())
]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SOME)
def test_a_family_trains_in_16_bits_as_on_a_cpu(kind: str, precision: str) -> None:
    cpu, device = (train(where, precision, tiny_config(kind), windows=1) for where in ("cpu", "cuda"))
    assert device.losses == pytest.approx(cpu.losses, rel=CLOSE, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", supported())
def test_16_bits_are_near_32(kind: str) -> None:
    """By loss and gradient norm of a first window, whatever form a module's low precision has."""
    wide, low = (train("cpu", found, tiny_config(kind), windows=1) for found in ("no", "bf16"))
    assert low.losses == pytest.approx(wide.losses, rel=1e-2)
    assert low.norms == pytest.approx(wide.norms, rel=0.1)
