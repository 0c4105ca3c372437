"""Every family trains on every capability of a card as on the CPU: in the fast tier every third family and
each card once, in the full one each family, and all of them behind the slow marker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from device_steps import train
from real_device import close

sys.path.append(str(Path(__file__).parents[1] / "models"))
from model_families import FAMILIES  # noqa: E402

CARDS = [
    ("fp16", (7, 0)),
    ("fp16", (7, 5)),
    ("no", (7, 5)),
    ("bf16", (8, 0)),
    ("no", (8, 0)),
    ("fp16", (9, 0)),
    ("bf16", (9, 0)),
    ("no", (9, 0)),
    ("bf16", (10, 0)),
]
CLOSE = {"no": 2e-6, "bf16": 2e-4, "fp16": 2e-4}
ROUTED = {"no": 2e-6, "bf16": 2e-3, "fp16": 2e-3}  # another rounding sends a token to another expert
ALL = [(family, *card) for family in FAMILIES for card in CARDS]
SOME = [(family, *CARDS[(4 * i + 3) % len(CARDS)]) for i, family in enumerate(FAMILIES)]
FAST = [next(case for case in SOME if case[1:] == card) for card in CARDS]
WAITS = 1  # of a device whose copies do not pass beside its kernels: what is reported


def near(family: str) -> Mapping[str, float]:
    """How near losses have to be, by precision."""
    return ROUTED if "num_experts_per_tok" in FAMILIES[family] else CLOSE


@pytest.mark.parametrize(
    ("family", "precision", "capability"),
    [
        pytest.param(
            *case, marks=() if case in FAST else pytest.mark.full if case in SOME else pytest.mark.slow
        )
        for case in ALL
    ],
)
def test_a_family_trains_as_on_a_cpu(family: str, precision: str, capability: tuple[int, int]) -> None:
    cpu = train("cpu", precision, FAMILIES[family], capability=capability)
    device = train("cuda", precision, FAMILIES[family], capability=capability)
    assert device.losses == pytest.approx(cpu.losses, abs=close(near(family)[precision], precision))
    assert all(device.planned_attention.startswith(f"{kernel}: ") for kernel in device.attention)
    assert device.experts_wait == bool(device.waits), device.waits


@pytest.mark.parametrize("precision", ["bf16", pytest.param("no", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if i % 4 == 0 else pytest.mark.slow) for i, name in enumerate(FAMILIES)],
)
def test_a_family_trains_without_float64(family: str, precision: str) -> None:
    cpu = train("cpu", precision, FAMILIES[family])
    device = train("mps", precision, FAMILIES[family])
    assert device.losses == pytest.approx(cpu.losses, abs=near(family)[precision])
    assert sum(device.waits.values()) <= WAITS, device.waits


def test_the_cases_in_ci_have_every_family_and_every_card() -> None:
    assert {case[0] for case in SOME} == set(FAMILIES)
    assert {case[1:] for case in FAST} == set(CARDS)
