"""A model's parameters as its class lists them: by name, shape and kind of module. No torch.

Layers with the same tensors stand once, with ``*`` for the layer's index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Kinds: ``nn.Linear``; Transformers' ``Conv1D`` (stored [in, out]); other matrices that tokens are
#: multiplied with (routers); a mixture's experts; ``nn.Embedding``; convolutions over time; the output head;
#: the rest.
LINEAR, TRANSPOSED, MATRIX, EXPERTS = "linear", "transposed", "matrix", "experts"
EMBEDDING, CONVOLUTION, HEAD, OTHER = "embedding", "convolution", "head", "other"
MULTIPLIED = frozenset({LINEAR, TRANSPOSED, MATRIX, EXPERTS, HEAD})
EVERY_KIND = frozenset({*MULTIPLIED, EMBEDDING, CONVOLUTION, OTHER})
LAYER = "*"


@dataclass(frozen=True)
class Listed:
    """One tensor; in ``name`` a ``*`` stands for the layer's index."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerRun:
    """``count`` consecutive layers from ``first`` on with the tensors ``tensors`` of the listing.

    ``first`` is -1 for tensors outside of layers.
    """

    tensors: int
    first: int = -1
    count: int = 1


@dataclass(frozen=True)
class Listing:
    """All parameters in the order of ``named_parameters()``, tied ones once.

    ``transformers``: the version that was asked. ``tied``: the head is the embedding. ``saved``: by index
    into ``tensors``, bytes a token that a layer whose mixer carries state saves for the backward, computed in
    bfloat16 without kernels; 0 for other layers.
    """

    transformers: str
    tied: bool
    tensors: tuple[tuple[Listed, ...], ...]
    runs: tuple[LayerRun, ...]
    saved: tuple[float, ...] = ()

    @property
    def state_layers(self) -> tuple[int, float]:
        """Return (number of layers with state, bytes a token that all of them save)."""
        kept = [(run.count, self.saved[run.tensors]) for run in self.runs if run.first >= 0 and self.saved]
        return sum(n for n, each in kept if each), sum(n * each for n, each in kept)

    @property
    def sound(self) -> bool:
        """Whether every part refers to what exists (a kept file may be damaged)."""
        every = [one for tensors in self.tensors for one in tensors]
        return (
            bool(every)
            and all(
                one.kind in EVERY_KIND and all(type(n) is int and n >= 0 for n in one.shape) for one in every
            )
            and all(0 <= run.tensors < len(self.tensors) and run.count > 0 for run in self.runs)
            and len(self.saved) in (0, len(self.tensors))
        )
