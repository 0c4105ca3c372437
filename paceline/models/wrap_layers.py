"""Each decoder layer before an engine wraps it: compiled by torch.compile, or with gradient checkpointing.

Layers are compiled in place: hooks (FSDP2's gathers), checkpointing and collectives between layers stay
outside the graph.

One graph serves all layers of a kind, and every length. Whatever differs from batch to batch is a dim marked
dynamic, or a value behind an operator (``compiled_attention``). Each graph is whole (``fullgraph``): a layer
that dynamo cannot trace runs uncompiled, and the log says why.

With gradient checkpointing a layer's activations are recomputed in the backward instead of kept. The
outputs of chosen operators may be kept (selective activation checkpointing, as in
``torch.utils.checkpoint``).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.sequence_info import AttentionContext, PackedSequenceInfo
from paceline.models.recurrent_layers import has_state
from paceline.plan.plan import ATTENTION, MATMUL

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


# by kind, the operators (namespace, name) that compute it; those that write into a given output are not kept
_OPERATORS = {
    ATTENTION: {
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
        ("aten", "_scaled_dot_product_flash_attention"),
        ("aten", "_scaled_dot_product_efficient_attention"),
        ("aten", "_scaled_dot_product_cudnn_attention"),
        ("aten", "_flash_attention_forward"),
        ("torch_attn", "_varlen_attn"),
    },
    MATMUL: {("aten", "mm"), ("aten", "addmm"), ("aten", "linear")},  # not those of experts
}


def enable_recompute(hf: HFModel, slot: AttentionContext, keep: Collection[str] = ()) -> None:
    """Enable non-reentrant checkpointing of every layer of a Hugging Face model.

    ``keep``: kinds of operators (``plan.plan.KEPT_KINDS``) whose outputs are kept; all else is
    recomputed. A recomputation runs under the document layout of its own forward, even if other
    forwards came in between. Raises ConfigError ``models.no_recompute`` if the model class has no
    checkpointing.
    """
    if not getattr(hf, "supports_gradient_checkpointing", False):
        raise ConfigError(codes.MODELS_NO_RECOMPUTE("training.gradient_checkpointing", type(hf).__name__))
    kept = frozenset().union(*(_OPERATORS[kind] for kind in keep))

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # the layout of this forward: by the backward another micro-batch's may be set
        layout = slot.packed_sequences(slot.current)
        if not kept:
            return nullcontext(), layout
        make: Callable[..., Any] = create_selective_checkpoint_contexts
        forward, again = make(_policy(kept))
        return forward, _both(layout, again)

    # Newer versions of Transformers warn at the older name
    newer, older = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    enable: Callable[[dict[str, object]], None] = getattr(hf, newer if hasattr(hf, newer) else older)
    enable({"use_reentrant": False, "context_fn": contexts})


def _policy(kept: Collection[tuple[str, str]]) -> Callable[..., CheckpointPolicy]:
    """Return the policy that keeps the outputs of these operators."""

    def decide(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        schema = operator._schema
        is_kept = tuple(schema.name.split("::")) in kept and not schema.is_mutable
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield
