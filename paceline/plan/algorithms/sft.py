"""Spec of supervised fine-tuning."""

from __future__ import annotations

from paceline.plan.algorithms.base import AlgorithmSpec

SFT = AlgorithmSpec("sft", evaluated=("eval_loss", "eval_token_accuracy"))
