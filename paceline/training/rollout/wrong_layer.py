"""Find the layer whose weights are wrong on a generation server, without the former weights: mute layers in
turn.

A norm removes the residual's scale. So a model computes the same if its embeddings, and all matrices that
write to the residual, are ``LOUD`` times as large. A layer whose matrices are not scaled is then too small to
matter, whatever weights the server has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.models.compile_layers import decoder_layers
from paceline.protocols.model import RootModule

LOUD = 2.0**32  # a power of two: exact, also backwards
SAME = 0.1  # nats by which the loud model may differ: the norms' epsilons weigh less
WRITERS = frozenset(
    (
        *("o_proj", "out_proj", "c_proj", "dense", "wo", "fc_out"),
        *("down_proj", "down_proj_bias", "dense_4h_to_h", "fc2", "w2", "output_linear"),
    )
)
OUTSIDE = "in the embeddings, the last norm or the head"


class LoudLayers:
    """Scales the first layers of a model up by ``LOUD``. ``names``: of all layers, in order."""

    def __init__(self, root: RootModule) -> None:
        hf = root.hf
        layers = list(decoder_layers(hf.base_model))
        names = {id(module): name for name, module in hf.named_modules()}
        self.names = [names[id(layer)] for layer in layers]
        inside = {id(module) for layer in layers for module in layer.modules()}
        outside = [module for module in hf.modules() if id(module) not in inside]
        self.embeddings = [module.weight for module in outside if isinstance(module, nn.Embedding)]
        tied = hf.get_output_embeddings().weight is hf.get_input_embeddings().weight
        within = {id(p) for layer in layers for p in layer.parameters()}
        self.norms = [p for p in hf.parameters() if tied and p.ndim == 1 and id(p) not in within]
        self.writers = [[p for name, p in layer.named_parameters() if writes(name)] for layer in layers]

    @property
    def exact(self) -> bool:
        """Whether every weight can be scaled up and back without loss."""
        every = [*self.embeddings, *self.norms, *(p for writers in self.writers for p in writers)]
        return all(self.writers) and all(p.is_floating_point() and p.dtype != torch.float16 for p in every)

    @contextmanager
    def loud(self, places: Collection[int]) -> Iterator[None]:
        """Inside, the layers at ``places`` are scaled up, so that the others do not matter; afterwards all
        weights are restored bit for bit.
        """
        up = [*self.embeddings, *(p for place in places for p in self.writers[place])]
        self._scale(up, LOUD)
        self._scale(self.norms, 1 / LOUD)
        try:
            yield
        finally:
            self._scale(up, 1 / LOUD)
            self._scale(self.norms, LOUD)

    @torch.no_grad()
    def _scale(self, parameters: Iterable[Tensor], factor: float) -> None:
        for parameter in parameters:
            parameter.mul_(factor)

    def hears(self, score: Callable[[], Tensor]) -> bool:
        """Whether this model can be searched: it computes the same with every layer loud, and something else
        with none. ``score``: its log-probabilities, collective.
        """
        if not self.exact:
            return False
        plain = score()
        with self.loud(range(len(self.names))):
            same = float((score() - plain).abs().mean())
        with self.loud(()):
            other = float((score() - plain).abs().mean())
        return same < SAME < other


def writes(name: str) -> bool:
    """Whether a layer's parameter is of a matrix that writes to the residual."""
    parts = name.split(".")
    return {"lora_A", "oft_R"}.isdisjoint(parts) and not WRITERS.isdisjoint(parts)


def first_wrong(wrong: Callable[[Collection[int]], bool | None], names: Sequence[str]) -> str:
    """Describe where the first wrong layer is; empty if it is not found.

    ``wrong``: whether a server differs with the layers at these places scaled up; None if it failed. It is
    called 3 + log2(layers) times at most.
    """
    every = range(len(names))
    if (outside := wrong(())) or outside is None or not wrong(every):
        return OUTSIDE if outside else ""
    low, high = 0, len(names)
    while high - low > 1:
        middle = (low + high) // 2
        if (differs := wrong(range(middle))) is None:
            return ""
        low, high = (low, middle) if differs else (middle, high)
    # of layers that are in each other's place, one alone is at home anywhere
    more = wrong([place for place in every if place != low])
    return f"in {names[low]}" + (", and further layers differ" if more else "")
