"""Rotary embeddings whose frequencies depend on the input length: each document gets the frequencies of its
own length.

Dynamic NTK and LongRoPE (Ding et al. 2024, arXiv:2402.13753) choose their factor by the largest position of a
call. In a batch of several documents that would be the longest document's, for all of them. Here the module
is called for each document separately, from its initial state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.sequence_info import slot_of
from paceline.models.replace_forward import replace_forward
from paceline.plan.model.read_config import BY_LENGTH

_FRESH = "original_inv_freq"
Turns = Tensor | tuple[Tensor, ...]  # cos and sin, or complex numbers
Forward = Callable[..., Turns]


class DocumentRope(nn.Module):
    """The class that such a module is swapped to. Outside of a root module's forward (generation) the
    module's own code runs.
    """

    @torch.compiler.disable
    def forward(self, x: Tensor, position_ids: Tensor, *kind: str | None, **options: str | None) -> Turns:
        """position_ids int64 [1, T] of a flat batch, or [rows, longest] -> the module's own tensors, [..,
        tokens, width] along dim 1.

        Raises ConfigError ``models.rope_by_length`` under context parallelism, where a rank has a part of the
        tokens only.
        """
        forward: Forward = super().forward
        slot = slot_of(self)
        layout, rows = (None, None) if slot is None else (slot.current, slot.rows)
        if rows is not None:  # padding repeats the last position, so a row counts as long as its document
            ends = rows.cu_seqlens.diff()
            parts = [
                _alone(self, forward, x[:1], position_ids[i : i + 1].clamp(max=int(end) - 1), kind, options)
                for i, end in enumerate(ends.tolist())
            ]
            return _joined(parts, 0)
        if layout is None:
            return forward(x, position_ids, *kind, **options)
        if position_ids.shape[-1] != layout.bounds[-1]:
            raise ConfigError(
                codes.MODELS_ROPE_BY_LENGTH("training.parallelism.cp_size", type(self).__name__)
            )
        parts = [
            _alone(self, forward, x[:, a:b], position_ids[:, a:b], kind, options)
            for a, b in pairwise(layout.bounds)
        ]
        return _joined(parts, 1)


def rope_by_document(model: nn.Module) -> int:
    """Swap the rotary embeddings of ``model`` that depend on the length; return how many."""
    count = 0
    for module in model.modules():
        if depends_on_length(module) and not isinstance(module, DocumentRope):
            module.__class__ = replace_forward(DocumentRope, type(module))
            count += 1
    return count


def depends_on_length(module: nn.Module) -> bool:
    """Return whether this is a rotary embedding whose frequencies depend on the length (for any of its layer
    types).
    """
    kinds = getattr(module, "rope_type", None)
    types = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
    return bool(types & BY_LENGTH)


def _alone(
    module: nn.Module,
    forward: Forward,
    x: Tensor,
    positions: Tensor,
    kind: Sequence[str | None],
    options: Mapping[str, str | None],
) -> Turns:
    """Return the module's output for one document, as if it were the first it sees."""
    for name in [n for n in vars(module) | module._buffers if n.endswith(_FRESH)]:
        prefix = name.removesuffix(_FRESH)
        current = getattr(module, f"{prefix}inv_freq", None)
        if isinstance(current, Tensor):
            module.register_buffer(
                f"{prefix}inv_freq", getattr(module, name).to(current.device).clone(), persistent=False
            )
        if hasattr(module, f"{prefix}max_seq_len_cached"):
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
    return forward(x, positions, *kind, **options)


def _joined(parts: list[Turns], dim: int) -> Turns:
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if tensors:
        return torch.cat(tensors, dim)
    return tuple(torch.cat(part, dim) for part in zip(*parts, strict=True))
