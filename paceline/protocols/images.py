"""The images of a micro-batch: what a model's vision tower reads, and where their tokens stand in the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from torch import Tensor


class ImageFeatures(Protocol):
    """A vision tower's output: the features of each image's tokens, and those that later layers add."""

    pooler_output: Tensor | Sequence[Tensor]
    deepstack_features: Sequence[Tensor | Sequence[Tensor]]


@dataclass(frozen=True)
class Images:
    """Images of the documents of one micro-batch of ``T`` tokens, in document order.

    inputs        name -> tensor       what the family's tower reads (``pixel_values``, ``image_grid_thw``,
                                       ``image_sizes``, …), images along dim 0
    places        int64 [N] ascending  flat positions of the image tokens in the row
    counts        of each image        its number of image tokens; the sum is N
    position_ids  int64 [A, 1, T]      rotary positions on several axes, which restart at each document; None
                                       for a family whose positions are those of the batch
    runs          (start, end) each    consecutive image tokens, found on the host: where tokens of an image
                                       see each other, those of a run within one document do
    """

    inputs: Mapping[str, Tensor]
    places: Tensor
    counts: tuple[int, ...]
    position_ids: Tensor | None
    runs: tuple[tuple[int, int], ...]

    @staticmethod
    def of(
        inputs: Mapping[str, Tensor],
        places: Tensor,
        counts: tuple[int, ...],
        position_ids: Tensor | None = None,
    ) -> Images:
        """Return the images with their ``runs``, from tensors on the host."""
        return Images(inputs, places, counts, position_ids, consecutive(places.tolist()))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Images:
        """Return the same images with ``move`` applied to every tensor."""
        inputs = {name: move(value) for name, value in self.inputs.items()}
        positions = None if self.position_ids is None else move(self.position_ids)
        return replace(self, inputs=inputs, places=move(self.places), position_ids=positions)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        yield from (*self.inputs.values(), self.places)
        if self.position_ids is not None:
            yield self.position_ids

    def blocks(self, bounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return ``runs``, cut where one reaches from a document into the next (``bounds``: D + 1 ints)."""
        parts: list[tuple[int, int]] = []
        for first, last in self.runs:
            edges = [first, *(bound for bound in bounds if first < bound < last), last]
            parts += pairwise(edges)
        return tuple(parts)


def consecutive(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs [start, end) of ascending ``places`` without gaps."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] = place + 1
        else:
            runs.append([place, place + 1])
    return tuple((start, end) for start, end in runs)
