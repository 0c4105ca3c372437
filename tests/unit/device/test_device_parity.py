"""A step on an accelerator is the step on the CPU: the same plan, the same losses, the same weights."""

from __future__ import annotations

import pytest
import torch
from device_steps import train
from real_device import close

# fp32 takes another kernel for attention; in low precision products are rounded elsewhere
CLOSE = {"no": 2e-6, "bf16": 2e-4, "fp16": 2e-4}


full = pytest.mark.full


@pytest.mark.parametrize(
    ("precision", "recompute"),
    [("no", False), ("bf16", True), ("fp16", True)]
    + [pytest.param(*case, marks=full) for case in (("no", True), ("bf16", False), ("fp16", False))],
)
def test_sft_trains_as_on_a_cpu(precision: str, recompute: bool) -> None:
    options = {"training": {"gradient_checkpointing": recompute}}
    cpu, device = train("cpu", precision, **options), train("cuda", precision, **options)
    assert device.losses == pytest.approx(cpu.losses, abs=close(CLOSE[precision], precision))
    assert device.norms == pytest.approx(cpu.norms, rel=1e-2)
    assert device.skipped == [None, None]
    assert set(device.weights) == set(cpu.weights) and len(cpu.weights) > 10
    # Adam's first steps are of size lr whatever the gradient: weights differ by its sign at most
    for name, weight in cpu.weights.items():
        assert torch.allclose(weight, device.weights[name], atol=5e-3), name


@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [("reward", "bf16"), ("dpo", "no")]
    + [pytest.param(*case, marks=full) for case in (("reward", "no"), ("dpo", "bf16"))],
)
def test_pairs_train_as_on_a_cpu(algorithm: str, precision: str) -> None:
    options = {"training": {"algorithm": algorithm}}
    cpu, device = train("cpu", precision, **options), train("cuda", precision, **options)
    assert device.losses == pytest.approx(cpu.losses, abs=close(CLOSE[precision], precision))
    assert device.norms == pytest.approx(cpu.norms, rel=2e-2)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("reward", "mps"), ("orpo", "mps"), ("dpo", "xpu"), ("simpo", "xpu"), ("cpo", "mps")]
    + [
        pytest.param(*case, marks=full)
        for case in (("reward", "xpu"), ("orpo", "xpu"), ("dpo", "mps"), ("simpo", "mps"), ("cpo", "xpu"))
    ],
)
def test_pairs_train_on_other_devices_as_on_a_cpu(algorithm: str, kind: str) -> None:
    """MPS has no float64: a tensor of that dtype there raises. bf16 rounds in proportion: the losses of ORPO
    and CPO, near 5, may differ by more than those near 1 (by 6e-5 of them where a CPU multiplies in bf16).
    """
    options = {"training": {"algorithm": algorithm}}
    cpu, device = train("cpu", "bf16", **options), train(kind, "bf16", **options)
    assert device.losses == pytest.approx(cpu.losses, rel=1e-4, abs=CLOSE["bf16"])
    assert device.norms == pytest.approx(cpu.norms, rel=2e-2)


def test_adapters_train_as_on_a_cpu() -> None:
    cpu, device = train("cpu", "bf16", lora={"r": 4}), train("cuda", "bf16", lora={"r": 4})
    assert device.losses == pytest.approx(cpu.losses, abs=close(CLOSE["bf16"], "bf16"))
    assert set(device.weights) == set(cpu.weights) and all("lora" in name for name in cpu.weights)
