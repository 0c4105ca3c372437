"""Sums of squares against float64, at sizes where torch's own fp32 sum is wrong."""

from __future__ import annotations

import pytest
import torch

from paceline.strategies.grad_norm import CHUNK, squares


@pytest.mark.parametrize("shape", [(7,), (CHUNK,), (CHUNK + 1,), (3, 1_500_000), (2, 3, 5)])
def test_fp32_sums_have_fp32_accuracy(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = gradient.double().square().sum()
    assert squares([gradient])[0] == pytest.approx(float(expected), rel=2e-6)
    assert squares([gradient]).dtype == torch.float64


def test_each_gradient_has_its_own_sum_and_layout_does_not_matter() -> None:
    a, b = torch.randn(40, 30, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    found = squares([a.t(), b])
    assert found.tolist() == pytest.approx([float(a.square().sum()), float(b.square().sum())], rel=1e-14)


def test_what_is_no_number_stays_so() -> None:
    assert torch.isinf(squares([torch.tensor([1.0, float("inf")])])).all()
    assert torch.isnan(squares([torch.tensor([1.0, float("nan")])])).all()
