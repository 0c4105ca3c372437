"""The Triton kernels without a GPU: their numbers in Triton's interpreter, and their compilation for every
supported card.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from device_steps import LLAMA, train

from paceline.models.attention import kernel_choice
from paceline.models.triton_kernels import launch, operators, reference
from paceline.plan.model.kernels import EAGER, TRITON, row_kernels

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 8, "hidden_act": "gelu_pytorch_tanh"}
ALL_WORK = ("activation", "loss", "norm", "rotary")
ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("interpreted_row_kernels.py")
#: How far a rounded result may be from fp64's: half a unit; three units of fp32, in which sums are; two
#: units of bf16, which the interpreter truncates to (a device rounds; where a kernel rounds twice, so does
#: the models' own module).
BOUNDS = {"float32": 3 * 2**-23, "float16": 2**-11 * 1.01, "bfloat16": 2**-6}


@needs_triton
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kernel_is_as_near_to_fp64_as_the_models_own_module(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(seed)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    assert len(lines) > 100
    far = {
        name: (float(ours), float(theirs))
        for name, ours, theirs in lines
        if float(ours) > max(float(theirs), BOUNDS[name.partition("/")[0]])
    }
    assert not far


def _small_and_wide() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """A call of each operator on a CPU."""
    torch.manual_seed(0)
    x, weight = torch.randn(6, 10), torch.rand(10)
    cos = torch.rand(6, 5).repeat(1, 2)
    q, k = torch.randn(6, 3, 10), torch.randn(6, 1, 10)
    y = torch.randint(10, (6,))
    low, moment = torch.randn(50).bfloat16(), torch.rand(50)
    numbers = [0.999, 2e-2, 1.3, 0.9, 0.95, 1e-8]
    return {
        "adamw_rounded": (
            operators.adamw_rounded,
            (low, low + 1, moment, moment + 1, numbers, [-5, 7], 2**31 + 1),
        ),
        "rms_norm": (operators.rms_norm, (x, weight, 1e-6, 1.0)),
        "rms_norm_backward": (operators.rms_norm_backward, (x, x, weight, torch.rand(6), 1.0, 3)),
        "gated": (operators.gated, (x, x + 1, True)),
        "gated_backward": (operators.gated_backward, (x, x + 1, x.clone(), False)),
        "rotary": (operators.rotary, (q, k, cos, cos, -1.0)),
        "nll_gradient": (operators.nll_gradient, (x.clone(), y, 0.5, 30.0)),
    }


def test_an_operator_has_the_shapes_and_numbers_of_its_reference() -> None:
    for name, (operator, args) in _small_and_wide().items():
        assert set(dir(reference)) >= {name} <= set(dir(launch))
        torch.library.opcheck(
            getattr(torch.ops.paceline, name),
            args,
            test_utils=("test_schema", "test_faketensor"),
        )
        copies = [tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args) for _ in range(2)]
        results = operator(*copies[0]), getattr(reference, name)(*copies[1])
        found, expected = (() if r is None else r if isinstance(r, tuple) else (r,) for r in results)
        written = [[x for x in c if isinstance(x, torch.Tensor)] for c in copies]
        for a, b in zip((*found, *written[0]), (*expected, *written[1]), strict=True):
            assert torch.equal(a, b), name


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_every_launch_compiles_for_every_card(dtype: torch.dtype, tmp_path: Path) -> None:
    _compiles(dtype, every=1)


@needs_triton
@pytest.mark.full
def test_launches_compile_for_every_card() -> None:
    """A part of the above: each kernel once a card."""
    _compiles(torch.float16, every=7)


@needs_triton
def test_launches_compile_for_the_least_and_the_newest_card() -> None:
    """Of those that the tables know: each kernel once."""
    from row_kernel_launches import SHARED

    _compiles(torch.float16, every=100, cards=(min(SHARED), max(SHARED)))


def _compiles(dtype: torch.dtype, every: int, cards: tuple[int, ...] = ()) -> None:
    from row_kernel_launches import SHARED, launches

    named = dict(launches(dtype))
    kinds = {name.split()[0] for name in named}
    assert kinds == set(_small_and_wide())
    for capability in cards or SHARED:
        if capability < 80 and dtype == torch.bfloat16:
            continue  # those cards have no bf16, and the plan gives them fp16
        chosen = list(named)[capability % every :: every]
        for name in {*chosen, *(next(n for n in reversed(named) if n.startswith(k)) for k in kinds)}:
            made = named[name].compiled(capability)
            assert made.asm["cubin"], name
            assert made.metadata.shared <= SHARED[capability], name


@pytest.mark.parametrize(
    ("model", "obstacle"), [(LLAMA, "there is no C compiler"), (GEMMA, "")], ids=["no compiler", "compiled"]
)
def test_what_the_plan_names_is_what_runs(model: dict, obstacle: str) -> None:
    cpu = train("cpu", "bf16", model)

    device = train("cuda", "bf16", model, no_triton=obstacle)
    assert device.losses == pytest.approx(cpu.losses, abs=2e-4)
    kernel = EAGER if obstacle else TRITON
    assert device.rows == {f"{work} {kernel}" for work in ALL_WORK}
    assert obstacle in device.notes["row-wise kernels"] and not cpu.rows
    [decision] = [d for d in device.plan.decisions if d.subject == "row-wise kernels"]
    assert decision.choice == kernel and obstacle in decision.reason


def test_norms_of_one_dtype_are_torchs_own_kernel() -> None:
    cpu, device = train("cpu"), train("cuda")
    assert device.losses == pytest.approx(cpu.losses, abs=2e-6)
    assert device.rows == {"activation triton", "loss triton", "norm aten", "rotary triton"}
    assert {"_fused_rms_norm", "_fused_rms_norm_backward"} <= set(device.kernels)


def test_a_first_kernel_that_fails_leaves_the_eager_path() -> None:
    with mock.patch.object(kernel_choice.operators, "rms_norm", side_effect=OSError("ld: no -lcuda")):
        device = train("cuda", "bf16")
    assert device.rows == {f"{work} {EAGER}" for work in ALL_WORK}
    assert "OSError: ld: no -lcuda" in device.notes["row-wise kernels"]


def test_cards_that_triton_has_no_code_for_are_left_to_torch() -> None:
    assert row_kernels("cuda", 6.1, "")[0] == row_kernels("xpu", None, "")[0] == EAGER
    assert row_kernels("cuda", 7.0, "")[0] == row_kernels("cuda", 12.1, "")[0] == TRITON
