"""Which attention kernel runs: by the device's capability, the dtype and the head's size; the one that the
plan names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from device_steps import LLAMA, train
from emulated_device import emulated
from support import swept

from paceline.models.attention.kernel_choice import AttentionKernels
from paceline.models.attention.packed_attention import document_attention
from paceline.models.attention.reference_attention import AttentionOptions
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.plan.model.kernels import (
    DOCUMENT_SCORES,
    DOCUMENT_SDPA,
    FLEX,
    PADDED_SDPA,
    VARLEN_FLASH,
    AttentionCall,
    attention_kernel,
)

WINDOW = {**LLAMA, "model_type": "mistral", "sliding_window": 4}
CAPPED = {
    **LLAMA,
    "model_type": "gemma2",
    "head_dim": 16,
    "sliding_window": 4,
    "attn_logit_softcapping": 3.0,
}
ODD = {**LLAMA, "head_dim": 12}
CASES = [
    ("fp16", (7, 0), LLAMA, PADDED_SDPA),
    ("fp16", (7, 5), LLAMA, PADDED_SDPA),
    ("fp16", (7, 5), WINDOW, PADDED_SDPA),
    ("bf16", (8, 0), LLAMA, VARLEN_FLASH),
    ("bf16", (8, 0), ODD, VARLEN_FLASH),
    ("fp16", (9, 0), WINDOW, VARLEN_FLASH),
    ("bf16", (10, 0), LLAMA, VARLEN_FLASH),
    ("bf16", (9, 0), CAPPED, FLEX),
    ("fp16", (7, 5), CAPPED, DOCUMENT_SCORES),
    ("no", (9, 0), CAPPED, DOCUMENT_SCORES),
    ("no", (9, 0), WINDOW, PADDED_SDPA),
]


@pytest.mark.parametrize(("precision", "capability", "model", "kernel"), swept(CASES, 2, first=1))
def test_the_kernel_that_the_plan_names_is_the_one_that_runs(
    precision: str, capability: tuple[int, int], model: dict, kernel: str
) -> None:
    """Before, every CUDA device was given flash in low precision: a T4 died in its first step."""
    cpu = train("cpu", precision, model, capability=capability)
    device = train("cuda", precision, model, capability=capability)
    assert device.attention == {kernel}
    assert device.planned_attention.startswith(f"{kernel}: ")
    close = 2e-6 if precision == "no" else 2e-4 if kernel != FLEX else 5e-4  # a CPU rounds scores to bf16
    assert device.losses == pytest.approx(cpu.losses, abs=close)
    attention_waits = [place for place in device.waits if "documents" in place or "padded" in place]
    assert attention_waits == []


def test_a_device_of_another_name_gets_one_padded_call() -> None:
    cpu, device = train("cpu", "bf16", WINDOW), train("xpu", "bf16", WINDOW)
    assert device.attention == {PADDED_SDPA}
    assert device.losses == pytest.approx(cpu.losses, abs=2e-4)


def test_the_capability_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated((8, 6)):
        asked = []
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device: asked.append(device) or (8, 6)
        )
        kernels, x = AttentionKernels(), torch.ones(1, 2, 4, 8, dtype=torch.bfloat16, device="cuda")
        for window in (False, True, False):
            kernels.choose(x, x, window=window, softcap=False, sinks=False, dropout=False)
    assert asked == [torch.device("cuda", 0)] and kernels.ran == {VARLEN_FLASH}


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "changed", "kernel"),
    [
        ("cuda", 8.0, "bfloat16", {}, VARLEN_FLASH),
        ("cuda", None, "bfloat16", {}, VARLEN_FLASH),
        ("cuda", 12.0, "float16", {"width": 256, "value_width": 256}, VARLEN_FLASH),
        ("cuda", 8.0, "float16", {"width": 264, "value_width": 264}, PADDED_SDPA),
        ("cuda", 8.6, "float16", {"width": 208, "value_width": 208}, PADDED_SDPA),
        ("cuda", 9.0, "float16", {"width": 208, "value_width": 208}, VARLEN_FLASH),
        ("cuda", 9.0, "bfloat16", {"width": 192}, VARLEN_FLASH),
        ("cuda", 8.9, "bfloat16", {"width": 200}, PADDED_SDPA),
        ("cuda", 9.0, "bfloat16", {"dropout": True}, PADDED_SDPA),
        ("cuda", 9.0, "bfloat16", {"window": True}, VARLEN_FLASH),
        ("cuda", 9.0, "bfloat16", {"width": 100}, VARLEN_FLASH),
        ("cuda", 9.0, "bfloat16", {"width": 257}, PADDED_SDPA),
        ("cuda", 8.0, "bfloat16", {"sinks": True}, VARLEN_FLASH),
        ("cuda", 7.5, "float16", {"sinks": True}, PADDED_SDPA),
        ("cpu", None, "float32", {"sinks": True}, DOCUMENT_SCORES),
        ("cuda", 9.0, "bfloat16", {"softcap": True}, FLEX),
        ("cuda", None, "bfloat16", {"softcap": True, "sinks": True, "window": True}, FLEX),
        ("cuda", 7.5, "float16", {"softcap": True}, DOCUMENT_SCORES),
        ("cuda", 9.0, "float32", {"softcap": True}, DOCUMENT_SCORES),
        ("cuda", 9.0, "bfloat16", {"softcap": True, "dropout": True}, DOCUMENT_SCORES),
        ("cuda", 9.0, "bfloat16", {"softcap": True, "width": 264}, DOCUMENT_SCORES),
        ("xpu", None, "bfloat16", {"softcap": True}, DOCUMENT_SCORES),
        ("npu", None, "bfloat16", {}, PADDED_SDPA),
        ("cpu", None, "bfloat16", {"window": True}, DOCUMENT_SDPA),
    ],
)
def test_a_kernel_is_chosen_by_what_it_takes(
    device: str, capability: float | None, dtype: str, changed: dict, kernel: str
) -> None:
    call = replace(AttentionCall(128, 128), **changed)
    assert attention_kernel(device, capability, dtype, call)[0] == kernel


@pytest.mark.parametrize("window", [None, 3])
def test_padded_rows_give_the_gradients_of_a_call_a_document(window: int | None) -> None:
    """In fp64, to the last bits: documents of unequal length, two query heads a key."""
    draw = torch.Generator().manual_seed(5)
    bounds = (0, 4, 5, 11)
    given = [torch.randn(1, h, 11, 8, dtype=torch.float64, generator=draw) for h in (4, 2, 2)]
    weight = torch.randn(1, 4, 11, 8, dtype=torch.float64, generator=draw)
    found = []
    for device in ("cpu", "cuda"):
        with emulated() as machine:
            inputs = [x.detach().to(device).requires_grad_() for x in given]
            layout = PackedSequenceInfo.over(bounds, inputs[0].device)
            machine.forget()
            out = document_attention(*inputs, layout, AttentionOptions(0.3, window=window))
            (out * weight.to(device, non_blocking=True)).sum().backward()
            assert not machine.waits
            found.append([out.detach().cpu(), *(x.grad.cpu() for x in inputs)])
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there, rtol=1e-12, atol=1e-12)
