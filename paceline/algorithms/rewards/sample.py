"""An answer to be scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.json_types import Json


@dataclass(frozen=True)
class Sample:
    """One answer, with all that a reward may use.

    prompt        the prompt as text
    completion    the answer without its special tokens
    columns       its row of the data set (``answer``, ``tests``, …)
    num_tokens    tokens of the answer, including the one that ends it
    ended         whether it ended by itself (false: truncated at the maximum length)
    opening       the last tokens of the rendered prompt, in which a template may open the answer (<think>)
    """

    prompt: str
    completion: str
    columns: Mapping[str, Json] = field(default_factory=dict)
    num_tokens: int = 0
    ended: bool = True
    opening: str = ""

    @property
    def answer(self) -> str:
        """The expected answer; KeyError if the row has none."""
        return str(self.columns["answer"])
