"""An optimizer as data: what to build, not how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OptimizerSpec:
    """``name`` is Transformers' ``optim`` (``adamw_torch_fused``, ``sgd``, …); betas, eps and weight_decay as in ``TrainingArguments``.

    Weight decay applies to matrices only (biases and norm weights are left out), as ``transformers.Trainer`` does.
    """

    name: str = "adamw_torch_fused"
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    args: Mapping[str, Any] = field(default_factory=dict)
