"""Bytes that a layer with state saves for the backward: its mixer run on the meta device, the rest estimated.

State spaces, linear attention and recurrences have no formula in common, and without their kernels
Transformers computes them by plain tensor operations that save many times the layer's width. The class itself
tells how many: its mixer is called with hidden states without storage, and what autograd saves is added up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

#: Parameters by which a mixer with state is known: decays, gates of a recurrence, convolutions over time.
_STATE = re.compile(
    r"(?:^|\.)(?:A_log|dt_bias|D|time_decay|recurrent_param|[if]gate_preact|(?:[qkv]_)?conv(?:_?1d)?)(?:\.|$)"
)
#: A layer that saves the inputs and outputs of its matrices keeps this many times their bytes in 16 bit
#: (measured: a Llama layer 1.05 to 1.08); one whose mixer could not be run at most this many (1.7 to 2.3).
PLAIN, UNKNOWN = 1.1, 2.3
TOKENS = 256  # of the trial: a multiple of the classes' chunks


def saved_bytes(hf: HFModel, layer: str) -> float:
    """Return bytes a token in bfloat16 that the layer named ``layer`` saves; 0 for a layer without state."""
    if not layer:
        return 0.0
    block = hf.get_submodule(layer)
    mixers = [child for child in block.children() if _carries_state(child)]
    if not mixers:
        return 0.0
    width, found = hf.config.get_text_config().hidden_size, 0.0
    for mixer in mixers:
        measured = _measured(mixer, width)
        found += UNKNOWN * _moved(mixer) if measured is None else measured
    return found + PLAIN * (_moved(block) - sum(_moved(mixer) for mixer in mixers))


def _carries_state(module: nn.Module) -> bool:
    """Whether a mixer carries state from token to token; lightning attention has no parameter to tell."""
    named = any(_STATE.search(name) for name, _ in module.named_parameters())
    return named or "Lightning" in type(module).__name__


def _moved(module: nn.Module) -> float:
    """Return bytes of the inputs and outputs of the linear layers inside ``module``, a token, in 16 bit."""
    inside = (m for m in module.modules() if isinstance(m, nn.Linear))
    return 2.0 * sum(m.in_features + m.out_features for m in inside)


def _measured(mixer: nn.Module, width: int) -> float | None:
    """Return what ``mixer`` saves a token; None where it cannot be called on its own."""
    mixer = mixer.to(torch.bfloat16)
    weights = {p.untyped_storage()._cdata for p in mixer.parameters()}
    for call in _calls(width):
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor, kept: dict[int, Tensor] = kept) -> Tensor:
            if (place := tensor.untyped_storage()._cdata) not in weights:
                kept[place] = tensor
            return tensor

        with (
            suppress(TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            call(mixer)
            return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / TOKENS
    return None


def _calls(width: int) -> Iterator[Callable[[nn.Module], object]]:
    """Yield the ways in which Transformers' mixers are called."""

    def hidden() -> Tensor:
        return torch.empty(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)

    positions = torch.arange(TOKENS, device="meta")[None]
    yield lambda mixer: mixer(hidden())
    yield lambda mixer: mixer(hidden(), position_ids=positions)
    yield lambda mixer: mixer(hidden(), positions, None)
    yield lambda mixer: mixer(hidden(), position_embeddings=None, attention_mask=None)
