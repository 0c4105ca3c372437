"""An answer to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One answer with everything a reward may look at.

    prompt        what was asked, as text
    completion    the answer without its special tokens
    columns       the row of the data set it belongs to (``answer``, ``tests``, …)
    num_tokens    tokens of the answer, the one that ends it included
    ended         whether it ended by itself (false: cut off at the longest length)
    """

    prompt: str
    completion: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    num_tokens: int = 0
    ended: bool = True

    @property
    def answer(self) -> str:
        """What was expected; KeyError when the row has none."""
        return str(self.columns["answer"])
