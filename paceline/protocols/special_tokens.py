"""A tokenizer's special tokens, as models and checkpoints need them."""

from __future__ import annotations

from dataclasses import dataclass

#: in ``Batch.extras``: the place of a document's first token of its second text (0: one text)
SECOND = "second"


@dataclass(frozen=True)
class SpecialTokens:
    """A tokenizer's ids (None: it has no such token); ``ends``: every token with which it or its chat
    template ends an answer.
    """

    eos: int | None = None
    bos: int | None = None
    pad: int | None = None
    ends: tuple[int, ...] = ()
