"""What the balance loss of a mixture's experts reads: per document, how often its tokens chose each expert
and the probabilities that the routers gave it, summed over tokens and layers.

The routers' logits come from Transformers' own recorders (``output_router_logits``), so a layer counts here
if it counts there. Only the logits are kept for the backward: under gradient checkpointing nothing of it
lies within a layer, which would be recomputed for it out of turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.shared_prefix import SharedPrompts
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.protocols.batch import Batch

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_VISITED = ("num_experts_per_tok", "moe_k")


class RouterSums:
    """Sums the routers' choices of one model. ``visited``: experts that a token is routed to."""

    def __init__(self, hf: HFModel) -> None:
        """Raises ConfigError ``models.router_logits`` if the class records none."""
        config = hf.config.get_text_config()
        counts = (getattr(config, name, None) for name in _VISITED)
        self.visited = next((count for count in counts if isinstance(count, int)), 0)
        self._kind = type(hf).__name__
        if not self.visited:
            raise ConfigError(_not_recorded(self._kind))

    def __call__(
        self,
        logits: tuple[Tensor, ...] | None,
        batch: Batch,
        shared: SharedPrompts | None = None,
        rows: PaddedRows | None = None,
    ) -> Tensor:
        """Logits [tokens, E] of every layer -> fp32 [2, D, E]: choices (without gradient), probabilities.

        ``shared``: the tokens are those that are computed once; ``rows``: they lie in padded rows.
        """
        if not logits:
            raise ConfigError(_not_recorded(self._kind))
        flat = [one.reshape(-1, one.shape[-1]) for one in logits]
        if shared is not None:
            flat = [shared.full(one, 0) for one in flat]
        if rows is not None:
            flat = [rows.unpad(one.view(*rows.index.shape, -1)) for one in flat]
        bounds = batch.boundaries()
        lengths = bounds[1:] - bounds[:-1]
        document = torch.repeat_interleave(lengths, output_size=flat[0].shape[0])
        return _DocumentSums.apply(self.visited, lengths, document, *flat)


class _SumsContext(FunctionContext):
    saved_tensors: tuple[Tensor, ...]  # document, then the logits


class _DocumentSums(Function):
    """Σ over layers and a document's tokens of the one-hot choices and of softmax(logits)."""

    @staticmethod
    def forward(
        ctx: _SumsContext, visited: int, lengths: Tensor, document: Tensor, *logits: Tensor
    ) -> Tensor:
        ctx.save_for_backward(document, *logits)
        probabilities = torch.zeros_like(logits[0], dtype=_wide(logits[0]))
        choices = torch.zeros_like(probabilities)
        for one in logits:
            found = _softmax(one)
            probabilities += found
            choices.scatter_add_(1, found.topk(visited, dim=-1).indices, torch.ones_like(found))
        both = torch.cat([choices, probabilities], dim=1)
        sums = torch.segment_reduce(both, "sum", lengths=lengths, axis=0, unsafe=True)
        return sums.view(len(lengths), 2, -1).transpose(0, 1)

    @staticmethod
    def backward(ctx: _SumsContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        document, *logits = ctx.saved_tensors
        given = grad[1].index_select(0, document)
        found = []
        for one in logits:
            p = _softmax(one)
            found.append((p * (given - (p * given).sum(-1, keepdim=True))).to(one.dtype))
        return None, None, None, *found


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits.to(_wide(logits)), dim=-1)


def _not_recorded(kind: str) -> Diagnostic:
    return codes.MODELS_ROUTER_LOGITS("training.router_aux_loss_coef", kind)
