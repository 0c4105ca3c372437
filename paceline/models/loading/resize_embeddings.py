"""Room in the embedding (and the head) for a tokenizer's new tokens.

New rows are the mean of the old ones plus a thousandth of their standard deviation as noise, from the seed.
They are equal on all ranks and distinct from each other. This is the rule of Hewitt 2021, "Initializing new
word embeddings", without its covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_COLUMNS = 256  # of the old rows that are held in fp32 at a time

Columns = Callable[[int, int], Tensor]  # (first, number) -> these columns of the old rows, [old, number]


@torch.no_grad()
def new_rows(columns: Columns, rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Return ``rows`` further rows [rows, width], fp32, of a weight whose old ones ``columns`` returns. The
    same bits however these are read.
    """
    noise = torch.randn(rows, width, generator=generator)
    for first in range(0, width, _COLUMNS):
        old = columns(first, min(_COLUMNS, width - first)).float().contiguous()
        noise[:, first : first + _COLUMNS].mul_(1e-3 * old.std(0)).add_(old.mean(0))
    return noise


@torch.no_grad()
def resize_embeddings(hf: HFModel, rows: int, seed: int) -> None:
    """Grow or shrink the embedding (and the head) of a model on the CPU to ``rows``, in place."""
    old = hf.get_input_embeddings().weight.shape[0]
    hf.resize_token_embeddings(rows, mean_resizing=False)
    if rows <= old:
        return
    generator = torch.Generator().manual_seed(seed)
    for name in vocabulary_names(hf):
        weight = hf.get_parameter(name)
        if weight.shape[0] != rows:
            continue
        if weight.ndim == 1:
            weight[old:] = weight[:old].mean()
            continue

        def columns(first: int, number: int, weight: Tensor = weight) -> Tensor:
            return weight[:old, first : first + number]

        weight[old:] = new_rows(columns, rows - old, weight.shape[1], generator)


def vocabulary_names(hf: HFModel) -> list[str]:
    """Return the names of the parameters with a row a token: the embedding's weight, then the head's weight
    and bias, a tied one once.
    """
    vocabulary: list[str] = []
    names = {id(parameter): name for name, parameter in hf.named_parameters()}
    for module in (hf.get_input_embeddings(), hf.get_output_embeddings()):
        for leaf in ("weight", "bias"):
            parameter = getattr(module, leaf, None)
            name = names.get(id(parameter)) if isinstance(parameter, nn.Parameter) else None
            if name is not None and name not in vocabulary:
                vocabulary.append(name)
    return vocabulary
