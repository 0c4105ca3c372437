"""How much of a device a step used: of the data sheet's peak where one is known (the planner's own
number), else of a timed product and called so.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import paceline.training.loop.throughput as metrics
from paceline.plan.cost.step_time import speed_of
from paceline.plan.hardware.device_catalogue import cards, data_sheet_peak
from paceline.plan.hardware.probe import peak_flops
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.workload.step_spec import Machine, StepSpec
from paceline.runlog.events import Step
from paceline.runlog.lines import step_line, utilisation
from paceline.training.loop.throughput import PeakFlops, Throughput
from paceline.training.reporting.observers import scalars

STEP = Step(step=1, epoch=0.1, loss=2.0)


def test_a_known_card_is_never_timed_and_its_peak_is_the_planner_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*_: object) -> float:
        raise AssertionError("a card with a data sheet was timed")

    monkeypatch.setattr(metrics, "matmul_rate", timed)
    for name, card in cards().items():
        monkeypatch.setattr(metrics, "device_name", lambda _, name=name: name)
        peak = PeakFlops.of(torch.device("cuda", 0), "bfloat16")
        assert peak == PeakFlops(card.machine().flops, True)
        assert PeakFlops.of(torch.device("cuda", 0), "float32").flops == peak.flops / 2
    monkeypatch.setattr(metrics, "device_name", lambda _: "An unheard-of card")
    with pytest.raises(AssertionError, match="timed"):
        PeakFlops.of(torch.device("cuda", 0), "bfloat16")


@pytest.mark.parametrize(
    "driver",
    [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA H200",
        "NVIDIA L40S",
        "NVIDIA A10G",
        "Tesla T4",
    ],
)
def test_both_tables_of_peaks_say_the_same_of_the_names_that_drivers_tell(driver: str) -> None:
    known = peak_flops(driver)
    assert known is not None and data_sheet_peak(driver, "float16") == max(known.values())


def test_a_run_s_mfu_is_the_planner_s_for_the_same_speed() -> None:
    shape = shape_from_config(
        {
            "model_type": "llama",
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "vocab_size": 32000,
            "max_position_embeddings": 128,
        }
    )
    machine: Machine = cards()["A100-SXM4-80GB"].machine()
    work = StepSpec(shape, machine, seq_len=128, micro_batch=8)
    from paceline.plan.cost.coefficients import speed_coefficients

    speed = speed_of(work, speed_coefficients("paceline"))
    peak = PeakFlops(data_sheet_peak("NVIDIA A100-SXM4-80GB", "bfloat16") or 0.0, True)
    run = Throughput(shape.matmul_parameters, 1, peak).utilisation(work.step_tokens, speed.step)
    assert run["mfu"] == pytest.approx(speed.mfu, rel=0.05)  # the planner counts attention as well
    assert run["of_product"] is None


def test_a_timed_product_is_called_so_and_nothing_over_a_hundred_per_cent_stands_alone() -> None:
    timed = Throughput(1_000_000, 1, PeakFlops(6e9, False))
    assert timed.utilisation(500, 1.0) == {"mfu": None, "of_product": pytest.approx(0.5)}
    slow, fast = (replace(STEP, **timed.utilisation(tokens, 1.0)) for tokens in (500, 1170))
    assert "50% of a timed product" in step_line(slow) and "MFU" not in step_line(slow)
    assert "%" not in utilisation(fast)[0][1] and "busy" in step_line(fast)
    assert "speed/mfu" not in scalars(slow) and scalars(slow)["speed/of_timed_product"] == pytest.approx(0.5)
    (over,) = utilisation(replace(STEP, mfu=1.17))
    assert over[0] == "MFU" and over[1].startswith("117% (over the data sheet's peak")
    assert utilisation(replace(STEP, mfu=0.45)) == [("MFU", "45%")] and utilisation(STEP) == []
    assert Throughput(1, 1, None).utilisation(1, 1.0) == {"mfu": None, "of_product": None}
