"""Calls of an encoder's trunk: positions, token types (first or second text), no pooler.

The trunk returns hidden states only; a head pools them (``models.heads``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.module_tensors import replaced
from paceline.plan.model.family import family_of
from paceline.protocols.batch import Batch
from paceline.protocols.special_tokens import SECOND

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


POOLER = "pooler"  # of a trunk: it knows one document a row, and is never run


@dataclass(frozen=True)
class EncoderInputs:
    """``first``: the position of a document's first token; ``token_types``: whether the trunk reads them."""

    first: int
    token_types: bool

    @staticmethod
    def of(hf: HFModel) -> EncoderInputs | None:
        """Return the inputs of ``hf``'s trunk; None if it is no encoder."""
        family = family_of(hf.config.model_type)
        if not family.encoder:
            return None
        first = (hf.config.pad_token_id or 0) + 1 if family.padding_first else 0
        # RoBERTa's classes take types, and its models know one
        several = int(getattr(hf.config, "type_vocab_size", 0)) > 1
        return EncoderInputs(first, family.token_types and several)

    def arguments(self, batch: Batch, positions: Tensor, rows: PaddedRows | None = None) -> dict[str, Tensor]:
        """Return the trunk's arguments for ``positions``, int64 [1, T], or [D, L] of padded ``rows``."""
        found = {"position_ids": positions + self.first}
        if self.token_types and SECOND in batch.extras:
            types = token_types(batch)
            found["token_type_ids"] = types if rows is None else types[0][rows.index]
        return found


def token_types(batch: Batch) -> Tensor:
    """Return int64 [1, T]: 1 for a token of its document's second text, 0 for others."""
    device, tokens = batch.input_ids.device, batch.input_ids.shape[1]
    begins = batch.extras[SECOND].to(device).long()
    lengths = batch.boundaries().diff()
    of_token = torch.repeat_interleave(begins, lengths, output_size=tokens)
    return ((of_token > 0) & (batch.position_ids[0] >= of_token)).long()[None]


def without_pooler(trunk: nn.Module) -> AbstractContextManager[None]:
    """Inside the context ``trunk`` does not pool: its own pooler expects one document per row."""
    pools = isinstance(getattr(trunk, POOLER, None), nn.Module)
    return replaced(trunk, **{POOLER: None}) if pools else nullcontext()
