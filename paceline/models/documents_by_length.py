"""The documents of a flat batch in groups of about one length, each group a batch of right-padded rows: for
layers that pass a state from token to token and know one document a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from paceline.models.padded_rows import PaddedRows

SHORTEST = 0.75  # of a group's longest document: shorter ones begin a group of their own
CHUNK = 64  # tokens; scans compute whole chunks of this size, so that shorter documents cost the same


@dataclass(frozen=True)
class DocumentsByLength:
    """Where the ``T`` tokens of a flat batch lie in the rows of all groups, laid end to end.

    sizes   (documents, longest) of each group
    places  of the tokens in those rows, as one row [1, sum of documents · longest]; None if all documents are
            equally long: the rows are then the batch itself, cut
    """

    sizes: tuple[tuple[int, int], ...]
    places: PaddedRows | None

    @staticmethod
    def of(bounds: Sequence[int], device: torch.device) -> DocumentsByLength:
        """Group documents with boundaries ``bounds`` (D + 1 ints)."""
        lengths = [end - start for start, end in pairwise(bounds)]
        if len(set(lengths)) == 1:
            return DocumentsByLength(((len(lengths), lengths[0]),), None)
        groups = grouped(lengths)
        sizes = tuple((len(group), lengths[group[0]]) for group in groups)
        starts, ends, first, row = (
            [],
            [],
            [0] * len(lengths),
            0,
        )  # first: the place of a document's first token
        for group, (_, longest) in zip(groups, sizes, strict=True):
            for number in group:
                starts.append(bounds[number])
                ends.append(bounds[number + 1])
                first[number] = row
                row += longest
        widths = [longest for count, longest in sizes for _ in range(count)]
        known = torch.tensor([starts, ends, widths, first, list(bounds[:-1]), lengths])
        start, end, width, offset, begin, length = known.to(device, non_blocking=True)
        of_place = torch.repeat_interleave(start - (width.cumsum(0) - width), width, output_size=row)
        index = torch.arange(row, device=device) + of_place
        real = index < torch.repeat_interleave(end, width, output_size=row)
        of_token = torch.repeat_interleave(offset - begin, length, output_size=bounds[-1])
        flat = torch.arange(bounds[-1], device=device) + of_token
        return DocumentsByLength(sizes, PaddedRows(index.clamp_(max=bounds[-1] - 1)[None], real[None], flat))

    def rows(self, x: Tensor) -> list[Tensor]:
        """[T, …] -> [documents, longest, …] of each group; what stands where no token is has no gradient."""
        if self.places is None:
            return [x.view(*self.sizes[0], *x.shape[1:])]
        counts = [documents * longest for documents, longest in self.sizes]
        parts = torch.split(self.places.pad(x).squeeze(0), counts)
        return [part.view(*size, *x.shape[1:]) for part, size in zip(parts, self.sizes, strict=True)]

    def flat(self, rows: Sequence[Tensor]) -> Tensor:
        """[documents, longest, …] of each group -> [T, …]."""
        if self.places is None:
            return rows[0].flatten(0, 1)
        return self.places.unpad(torch.cat([part.flatten(0, 1) for part in rows])[None])


def grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the documents in groups, the longest document of each group first."""
    groups: list[list[int]] = []
    least = 0.0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        whole = -(-lengths[number] // CHUNK) * CHUNK
        if not groups or whole < least:
            groups.append([])
            least = SHORTEST * whole
        groups[-1].append(number)
    return groups
