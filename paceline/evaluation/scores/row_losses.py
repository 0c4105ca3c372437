"""The loss of each row, as Transformers' own: the mean of -log p over the tokens with loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from paceline.data.token_table import decode_labels
from paceline.models.heads.lm_head import Head
from paceline.models.loading.materialize import name_trunk
from paceline.protocols.batch import IGNORE_INDEX

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

RowLoss = tuple[float, int, int]
Losses = list[RowLoss]
#: (ids, mask, places with a target [rows, width - 1]) -> the logits of those places in parts, in their order.
Logits = Callable[[Tensor, Tensor, Tensor], "Sequence[Tensor] | map[Tensor]"]


class RowLosses:
    """Computes the losses of documents. Logits are computed in chunks, for tokens with loss only, by the
    class's own head. A first row must show that this equals the class's forward; else that forward is used.
    """

    def __init__(self, hf: HFModel, pad_id: int) -> None:
        self._hf, self._pad_id = hf, pad_id
        self._logits: Logits | None = None

    @torch.no_grad()  # FSDP keeps buffers from one forward to the next: none may be an inference tensor
    def __call__(self, documents: Sequence[NDArray[np.int32]]) -> Losses:
        """Return (sum of -log p, tokens with loss, those that were the likeliest) of each document.

        Documents are padded on the right; padding is masked and carries no loss.
        """
        device = next(self._hf.parameters()).device
        ids, mask, labels = (tensor.to(device) for tensor in self._padded(documents))
        shifted = labels[:, 1:]
        has_loss = shifted != IGNORE_INDEX
        counts = has_loss.sum(1)
        if self._logits is None and bool(counts.any()):
            row = slice(first := int(counts.argmax()), first + 1)
            self._logits = self._chosen(ids[row], mask[row], has_loss[row])
        parts = () if self._logits is None or not bool(counts.any()) else self._logits(ids, mask, has_loss)
        losses, right = _scored(parts, shifted[has_loss])
        ends = counts.cumsum(0).tolist()
        return [
            (float(losses[begin:end].sum()), end - begin, int(right[begin:end].sum()))
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def _padded(self, documents: Sequence[NDArray[np.int32]]) -> tuple[Tensor, Tensor, Tensor]:
        width = max(map(len, documents))
        ids = torch.full((len(documents), width), self._pad_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, IGNORE_INDEX)
        for row, document in enumerate(documents):
            ids_of_row, wanted = decode_labels(document)
            ids[row, : len(ids_of_row)] = torch.from_numpy(ids_of_row.astype(np.int64))
            labels[row, : len(ids_of_row)] = torch.from_numpy(wanted.astype(np.int64))
            mask[row, : len(ids_of_row)] = 1
        return ids, mask, labels

    def _chosen(self, ids: Tensor, mask: Tensor, places: Tensor) -> Logits:
        """Return the chunked head if it gives the class's own logits for this row, else the class's head."""
        try:
            chunked = self._chunked()
            by_chunks = torch.cat([*chunked(ids, mask, places)])
            expected = torch.cat([*self._whole(ids, mask, places)])
            # A product of other shapes rounds otherwise
            same = by_chunks.shape == expected.shape and torch.allclose(
                by_chunks, expected, rtol=1e-3, atol=1e-3, equal_nan=True
            )
        except (TypeError, RuntimeError, AttributeError, ValueError):  # a class without a trunk of its own
            same = False
        return chunked if same else self._whole

    def _whole(self, ids: Tensor, mask: Tensor, places: Tensor) -> Sequence[Tensor]:
        return [self._hf(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1][places].float()]

    def _chunked(self) -> Logits:
        name_trunk(self._hf)
        head = Head(self._hf)

        def logits(ids: Tensor, mask: Tensor, places: Tensor) -> map[Tensor]:
            states = self._hf.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
            return map(head.own_logits, states.last_hidden_state[:, :-1][places].split(head.chunk_rows))

        return logits


def row_loss(logits: Tensor, targets: Tensor) -> RowLoss:
    """Return (sum of -log p, tokens with loss, those that were the likeliest) of one row.

    ``logits`` [n, V], ``targets`` int64 [n], IGNORE_INDEX without loss.
    """
    has_loss = targets != IGNORE_INDEX
    losses, right = _scored([logits[has_loss]], targets[has_loss])
    return float(losses.sum()), int(has_loss.sum()), int(right.sum())


def _scored(parts: Sequence[Tensor] | map[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (-log p [N] in float64, whether the target is the likeliest [N]) of the logits of N places."""
    losses, right, begin = (
        [targets.new_zeros(0, dtype=torch.float64)],
        [targets.new_zeros(0, dtype=torch.bool)],
        0,
    )
    for logits in parts:
        wanted = targets[begin : begin + len(logits)]
        losses.append(cross_entropy(logits, wanted, reduction="none").double())
        right.append(logits.argmax(-1) == wanted)
        begin += len(logits)
    return torch.cat(losses), torch.cat(right)
