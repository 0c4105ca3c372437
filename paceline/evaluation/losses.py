"""The loss of each row, as Transformers' own: the mean of -log p over the tokens with loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from paceline.data.table import decode_labels
from paceline.protocols.batch import IGNORE_INDEX

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


@torch.inference_mode()
def row_losses(
    hf: HFModel, documents: Sequence[NDArray[np.int32]], pad_id: int
) -> list[tuple[float, int, int]]:
    """Return (sum of -log p, tokens with loss, those that were the likeliest) of each document.

    Documents are padded on the right; padding is masked and carries no loss.
    """
    device = next(hf.parameters()).device
    width = max(map(len, documents))
    ids = torch.full((len(documents), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORE_INDEX)
    for row, document in enumerate(documents):
        own, wanted = decode_labels(document)
        ids[row, : len(own)] = torch.from_numpy(own.astype(np.int64))
        labels[row, : len(own)] = torch.from_numpy(wanted.astype(np.int64))
        mask[row, : len(own)] = 1
    logits = hf(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
    found = []
    for row in range(len(documents)):
        shifted = labels[row, 1:].to(device)
        has_loss = shifted != IGNORE_INDEX
        scores, targets = logits[row, :-1][has_loss].float(), shifted[has_loss]
        losses = cross_entropy(scores, targets, reduction="none").double()
        right = (scores.argmax(-1) == targets).sum()
        found.append((float(losses.sum()), len(targets), int(right)))
    return found
