"""How the values of parameters are read and changed where ranks hold parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def as_they_are(parameters: Sequence[nn.Parameter]) -> AbstractContextManager[Sequence[Tensor]]:
    """Return the values of parameters that this rank has whole."""
    return nullcontext([parameter.detach() for parameter in parameters])


@dataclass(frozen=True)
class ParameterAccess:
    """Three functions of a strategy. The default: each rank holds whole parameters and reads its own rows.

    whole     a context of the whole values of some parameters, to be read; a collective where forwards are
    own_part  the memory of what this rank has of a parameter between two steps, of any shape
    of_first  a tensor that the first of the ranks has that read the same rows; collective among these, which
              give tensors of its shape and dtype
    """

    whole: Callable[[Sequence[nn.Parameter]], AbstractContextManager[Sequence[Tensor]]] = as_they_are
    own_part: Callable[[nn.Parameter], Tensor] = torch.Tensor.detach
    of_first: Callable[[Tensor], Tensor] = torch.Tensor.detach
