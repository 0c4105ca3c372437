"""Tensor parallelism of families for which Transformers has no plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from paceline.models.low_precision.own_forward_modules import own_class
from paceline.models.parallel.tensor_parallel_layers import Forward, Tensors, with_argument
from paceline.models.parallel.tp_regions import block_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def why_not(config: PreTrainedConfig) -> str:
    """Return what in a model's config keeps the plan above from being followed; empty if nothing does."""
    exact = getattr(config, "slow_but_exact", False) and getattr(config, "pretraining_tp", 1) > 1
    return "slow_but_exact reads the weights in pieces of its own" if exact else ""


def counts_heads(block: nn.Module) -> bool:
    """Return whether an attention computes with a number of heads that it keeps, and with biases of all
    heads that it is given.
    """
    return own_class(block).__name__ == "BloomAttention"


def own_heads(attention: nn.Module, tensors: Tensors) -> Forward:
    """Forward of this rank's heads: it counts those alone, and takes their part of ALiBi's biases
    [rows × heads, 1, keys].
    """
    held = vars(attention)
    heads: int = held["num_heads"]
    held["num_heads"] = heads // tensors.group.size()

    def own(alibi: Tensor) -> Tensor:
        return block_of(alibi.view(-1, heads, *alibi.shape[1:]), tensors.group, 1).flatten(0, 1)

    return with_argument(attention, "alibi", own)
