"""Write the tokens of pictures into rendered texts, in place of the marks that templates write.

Hundreds of equal tokens stand for a picture. A text has one for each run of them, which is lengthened after
tokenisation: that is faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.data.images.processor import ImageMarks
from paceline.data.images.slots import RowImage
from paceline.data.rows.values import RowError
from paceline.plan.images.layouts import ImageLayout, image_layout
from paceline.plan.images.settings import ImageSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]


class Expanded(NamedTuple):
    """A text with the tokens of its pictures; ``counts``: features of each; ``places``: where they stand.

    ``runs``: how often each token of features in the text stands there once runs are lengthened.
    """

    text: str
    counts: tuple[int, ...]
    places: tuple[Span, ...]
    runs: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]  # (end of a mark in the text before, characters that it became longer)

    def moved(self, spans: Iterable[Span]) -> list[Span]:
        """Return spans of the text before as spans of this one."""
        return [(self._moved(start), self._moved(end)) for start, end in spans]

    def _moved(self, position: int) -> int:
        return position + sum(more for end, more in self.moves if end <= position)

    def without_pictures(self, spans: Iterable[Span]) -> list[Span]:
        """Return spans of this text without the tokens of pictures."""
        return [piece for span in spans for piece in _without(span, self.places)]


def _without(span: Span, places: Sequence[Span]) -> Iterator[Span]:
    start, end = span
    for first, last in places:
        if first < end and last > start:
            if first > start:
                yield start, first
            start = max(start, last)
    if start < end:
        yield start, end


class ImageWriter:
    """Writes pictures as the tokens of a model. Raises DataError if the tokenizer lacks one."""

    def __init__(self, settings: ImageSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        self.settings = settings
        self.marks = ImageMarks(settings.family, tokenizer)
        self._mark = re.compile(re.escape(self.marks.mark))
        self._texts: dict[tuple[int, int, bool], tuple[str, tuple[int, ...]]] = {}

    def expanded(self, text: str, images: Sequence[RowImage]) -> Expanded:
        """Return a rendered text with the tokens of its pictures. Raises RowError."""
        found = [match.span() for match in self._mark.finditer(text)]
        if len(found) != len(images):
            raise RowError("image_mark", f"{len(found)} marks ({self.marks.mark}), {len(images)} pictures")
        feature = self.marks.names["image"]
        if feature != self.marks.mark and feature in text:
            raise RowError("image_mark", f"a text holds {feature}")
        pieces: list[str] = []
        counts, places, moves, runs = [], [], [], list[int]()
        before = length = 0
        for (start, end), image in zip(found, images, strict=True):
            written, features = self._written(image, alone=len(images) == 1)
            pieces += (text[before:start], written)
            length += start - before + len(written)
            counts.append(sum(features))
            runs += features
            places.append((length - len(written), length))
            moves.append((end, len(written) - (end - start)))
            before = end
        pieces.append(text[before:])
        return Expanded("".join(pieces), tuple(counts), tuple(places), tuple(runs), tuple(moves))

    def repeats(self, ids: NDArray[np.int32], runs: Sequence[int]) -> NDArray[np.int64]:
        """Return how often each token stands in a text with lengthened runs, int64 [n]. Raises RowError."""
        places = np.flatnonzero(ids == self.marks.token_id)
        if len(places) < len(runs):
            raise RowError("image_cut", "a picture after the last answer")
        if len(places) > len(runs):
            raise RowError("image_mark", f"{len(places)} tokens of pictures in place of {len(runs)}")
        repeats = np.ones(len(ids), np.int64)
        repeats[places] = runs
        return repeats

    def _written(self, image: RowImage, *, alone: bool) -> tuple[str, tuple[int, ...]]:
        key = (image.width, image.height, alone)
        if key not in self._texts:
            if len(self._texts) > 1 << 12:
                self._texts.clear()
            layout = self._layout(image, alone)
            self._texts[key] = layout.text(self.marks.names, once=True), layout.features
        return self._texts[key]

    def _layout(self, image: RowImage, alone: bool) -> ImageLayout:
        try:
            return image_layout(self.settings, image.width, image.height, alone=alone)
        except ConfigError:
            raise
        except (ValueError, ZeroDivisionError) as error:
            raise RowError("image_shape", f"{image.path or 'a picture'}: {error}"[:200]) from error
