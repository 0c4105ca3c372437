"""The sampling kernels without a GPU: their numbers in Triton's interpreter, their compilation for every
card, and the operators against what a CPU samples.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.generation.engine import RolloutSampling
from paceline.generation.sampling import kernels
from paceline.generation.sampling.noise import stream_of
from paceline.generation.sampling.sample import choose

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("interpreted_sampling.py")
SETTINGS = [
    RolloutSampling(0.0),
    RolloutSampling(1.0),
    RolloutSampling(0.7, top_k=5),
    RolloutSampling(1.3, top_p=0.8),
    RolloutSampling(1.0, top_p=0.95, top_k=40),
    RolloutSampling(1.0, top_k=10**6),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_the_operators_draw_what_a_cpu_draws(sampling: RolloutSampling, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(64, 3000) * 2.5).to(dtype)
    streams, places = torch.tensor([stream_of(3, i) for i in range(64)]), torch.arange(64) % 9
    tokens, logprobs = choose(logits, sampling, streams, places)
    found, chosen = choose(logits, sampling, streams, places, kernels=True)
    assert torch.equal(found, tokens) and len(set(tokens.tolist())) > 20
    torch.testing.assert_close(chosen, logprobs, rtol=0, atol=3e-6)


def test_an_operator_has_the_shapes_of_its_reference() -> None:
    logits, keys = torch.randn(3, 20), torch.arange(3)
    for name, args in (
        ("nucleus", (logits, 4, 0.5, 1.0)),
        ("draw", (logits, kernels.nucleus(logits, 4, 0.5, 1.0), keys, keys, 1.0, True)),
        ("draw", (logits, None, keys, keys, 1.0, False)),
    ):
        torch.library.opcheck(
            getattr(torch.ops.paceline, name), args, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize(("cases", "cuts"), [("some", 5), pytest.param("all", 15, marks=pytest.mark.full)])
def test_a_kernel_computes_its_reference(cases: str, cuts: int) -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), cases],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == cuts * 9
    assert [line for line in lines if not line.endswith(" 0")] == []


CARDS = {70: "fp16", 75: "fp16", 80: "bf16", 86: "bf16", 89: "bf16", 90: "bf16", 100: "bf16"}
FEW = (70, 90)
LEAST_SHARED = 48 << 10  # bytes that a block may have on every card


@pytest.mark.parametrize(
    "capability", [c if c in FEW else pytest.param(c, marks=pytest.mark.slow) for c in CARDS]
)
def test_the_kernels_compile_for_a_card(capability: int) -> None:
    pytest.importorskip("triton")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from paceline.generation.sampling import launch, triton_source

    longs, floats = ("bounds", "streams", "places", "tokens"), ("scores", "highest", "sums", "logprobs")
    kinds: dict[str, str] = {
        "logits": f"*{CARDS[capability]}",
        "columns": "*i32",
        **dict.fromkeys(("words", "top_k", "part", "parts", "step"), "i32"),
        **dict.fromkeys(("top_p", "temperature"), "fp32"),
        **dict.fromkeys(longs, "*i64"),
        **dict.fromkeys(floats, "*fp32"),
    }
    whole = {"SAMPLED": True, "BOUNDED": True, "BLOCK": launch.COLUMNS}
    cases: list[tuple[Any, dict[str, Any], int]] = [
        (triton_source.nucleus, {"BLOCK": launch.BLOCK}, 8),
        (triton_source.draw, whole, 8),
        (triton_source.join, {"PARTS": launch.PARTS}, 1),
    ]
    for kernel, constants, warps in cases:
        signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
        made = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps},
        )
        assert made.asm["cubin"] and made.metadata.shared <= LEAST_SHARED
