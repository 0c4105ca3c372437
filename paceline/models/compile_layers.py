"""torch.compile of each decoder layer, in place, before an engine wraps it: hooks (FSDP2's gathers),
checkpointing and collectives between layers stay outside the graph.

One graph serves all layers of a kind, and every length. Whatever differs from batch to batch is a dim marked
dynamic, or a value behind an operator (``compiled_attention``). Each graph is whole (``fullgraph``): a layer
that dynamo cannot trace runs uncompiled, and the log says why.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.models.attention.sequence_info import AttentionContext, PackedSequenceInfo
from paceline.models.recurrent_layers import has_state

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

# of one layer class: kinds of attention × trained or frozen × with or without gradients × adapter on or off …
_GRAPHS = 64


class CompiledLayers:
    """The compiled layers of one model. ``count``: how many there are; ``stateful``: how many run
    uncompiled because they pass a state from token to token; ``refused``: why all do.

    ``ahead``: some micro-batches ran uncompiled, since tokens of an image see later ones.
    """

    def __init__(self, hf: HFModel, slot: AttentionContext, backend: str, mode: str | None) -> None:
        # it would split graphs at DDP's buckets, which end between layers here as it is
        torch._dynamo.config.optimize_ddp = False
        # Transformers caches its questions about torch's version; traced, they are asked once a graph
        warnings.filterwarnings("ignore", r"Dynamo detected a call to a `functools\.lru_cache`", UserWarning)
        self.count, self.stateful, self.refused, self.ahead = 0, 0, "", False
        self._slot, self._backend = slot, backend
        self._compile = partial(
            torch.compile, backend=backend, mode=mode, fullgraph=True, recompile_limit=_GRAPHS
        )
        for layer in decoder_layers(hf.base_model):
            if has_state(layer):
                self.stateful += 1
                continue
            # on the instance, so that hooks of engines stay around it
            vars(layer)["forward"] = self._forward_of(layer)
            self.count += 1
        if not self.count and not self.stateful:
            self.refused = "its class declares no layers"

    def describe(self) -> str:
        """Return how the layers are computed, for the log."""
        if self.refused:
            return f"uncompiled: torch.compile cannot trace a layer of this model ({self.refused})"
        spent = torch._dynamo.utils.calculate_time_spent().get("total_wall_time", 0.0)
        seconds = f"; {spent:.0f} s in this process so far" if spent >= 1 else ""
        left = f"; {self.stateful} that pass a state from token to token uncompiled" if self.stateful else ""
        ahead = "; micro-batches whose images' tokens see each other uncompiled" if self.ahead else ""
        return f"{self.count} decoder layers by torch.compile ({self._backend}){left}{ahead}{seconds}"

    def _forward_of(self, layer: nn.Module) -> Callable[..., Any]:
        compiled = self._compile(MethodType(_own_forward(type(layer)), layer))

        def forward(*args: Any, **kwargs: Any) -> Any:
            decodes = kwargs.get("past_key_values") is not None
            ahead = self._slot.current is not None and bool(self._slot.current.blocks)
            self.ahead |= ahead
            if self.refused or decodes or ahead or (self._slot.current is None and self._slot.rows is None):
                return type(layer).forward(layer, *args, **kwargs)
            if getattr(layer, "gradient_checkpointing", False) and layer.training:
                checkpointed: Callable[..., Any] = vars(layer)["_gradient_checkpointing_func"]
                return checkpointed(partial(run, **kwargs), *args)
            return run(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            _mark_lengths(args, kwargs, self._slot.current)
            try:
                return compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:
                if isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
                    raise
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                self.refused = " ".join(lines[:2])[:300]
                return _own_forward(type(layer))(layer, *args, **kwargs)

        return forward


def decoder_layers(trunk: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of the classes that the model declares unsplittable, outermost ones only."""
    declared = layer_names(trunk)
    inside: set[int] = set()
    for module in trunk.modules():
        if id(module) in inside or declared.isdisjoint(kind.__name__ for kind in type(module).__mro__):
            continue
        inside.update(id(child) for child in module.modules())
        yield module


def layer_names(trunk: nn.Module) -> set[str]:
    """Return the names of the classes that the model declares unsplittable; if it declares none (DeBERTa), of
    the classes that recomputation repeats.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    declared = set(getattr(trunk, "_no_split_modules", None) or ())
    return declared or {
        type(m).__name__ for m in trunk.modules() if isinstance(m, GradientCheckpointingLayer)
    }


def _own_forward(kind: type[nn.Module]) -> Callable[..., Any]:
    """Return the forward of a layer's class without Transformers' checkpointing around it."""
    forward: Callable[..., Any] = kind.forward
    while getattr(forward, "__code__", None) is not None and forward.__code__.co_name == _CHECKPOINTING:
        forward = inspect.unwrap(forward, stop=lambda f: f.__code__.co_name != _CHECKPOINTING)
    return forward


_CHECKPOINTING = "forward_with_checkpointing"  # transformers.modeling_layers.GradientCheckpointingLayer


def _mark_lengths(args: tuple[Any, ...], kwargs: dict[str, Any], layout: PackedSequenceInfo | None) -> None:
    """Mark every dim that differs between batches as dynamic, so that graphs serve all lengths."""
    turns = kwargs.get("position_embeddings")
    values = [*args[:1], kwargs.get("hidden_states"), kwargs.get("position_ids")]
    for value in (*values, *(turns if isinstance(turns, tuple) else (turns,))):
        if isinstance(value, Tensor) and value.dim() > 1:
            _mark(value, 0, 1)
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 4:
        _mark(mask, 0, 2, 3)
    alibi = kwargs.get("alibi")
    if isinstance(alibi, Tensor):
        _mark(alibi, *range(alibi.dim()))
    if layout is None:
        return
    for tensor in layout.varying():
        _mark(tensor, *range(tensor.dim()))


def _mark(tensor: Tensor, *dims: int) -> None:
    for dim in dims:
        if tensor.shape[dim] > 1:  # torch makes graphs of their own for sizes 0 and 1
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
