"""Adapters merged into a model that is in memory, a weight at a time, as an export merges them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.models.lora.base_weights import merging
from paceline.models.quantized_linear import packed_weights, rounded
from paceline.plan.plan import AdapterSpec, Quantization


@torch.no_grad()
def merge(hf: Any, spec: AdapterSpec, trained: Mapping[str, Tensor]) -> None:
    for name, steps in merging(hf, spec, trained).items():
        for step in steps:
            step(hf.get_parameter(name), trained)


@torch.no_grad()
def round_trip(hf: Any, spec: Quantization) -> None:
    for name in packed_weights(hf):
        weight = hf.get_parameter(name)
        weight.copy_(rounded(weight.detach(), spec))
