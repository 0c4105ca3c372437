"""Routing of a mixture of experts: routers, the load of each expert, the sums of the balance loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.shared_prefix import SharedPrompts
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.protocols.batch import Batch

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def routers(hf: HFModel) -> Iterator[nn.Module]:
    """Yield the modules that choose a token's experts, except those that also hold experts or attention."""
    # the classes whose outputs Transformers records as router logits
    recorded = (getattr(hf.base_model, "_can_record_outputs", None) or {}).get("router_logits")
    specs = recorded if isinstance(recorded, list) else [recorded]
    classes = tuple(kind for spec in specs if (kind := getattr(spec, "target_class", None)) is not None)
    for module in hf.modules():
        name = type(module).__name__
        if isinstance(module, classes) and ("Router" in name or "Gat" in name):
            yield module


def freeze_routers(hf: HFModel) -> None:
    """Freeze the routers. Raises ConfigError ``models.no_router`` if none is found."""
    modules = list(routers(hf))
    if not modules:
        raise ConfigError(codes.MODELS_NO_ROUTER("training.freeze_router", type(hf).__name__))
    for module in modules:
        module.requires_grad_(False)


_VISITED = ("num_experts_per_tok", "moe_k")


class RouterSums:
    """Sums per document and expert: how often its tokens chose the expert, and the routers' probabilities.

    ``visited``: experts that a token is routed to. Only the routers' logits, as Transformers' own recorders
    give them, are kept for the backward. So under gradient checkpointing the balance loss needs no extra
    recomputation of layers.
    """

    def __init__(self, hf: HFModel) -> None:
        """Raises ConfigError ``models.router_logits`` if the class records none."""
        config = hf.config.get_text_config()
        counts = (getattr(config, name, None) for name in _VISITED)
        self.visited = next((count for count in counts if isinstance(count, int)), 0)
        self._kind = type(hf).__name__
        self._check(bool(self.visited))

    def _check(self, recorded: bool) -> None:
        if not recorded:
            raise ConfigError(codes.MODELS_ROUTER_LOGITS("training.router_aux_loss_coef", self._kind))

    def __call__(
        self,
        logits: tuple[Tensor, ...] | None,
        batch: Batch,
        shared: SharedPrompts | None = None,
        rows: PaddedRows | None = None,
    ) -> Tensor:
        """Logits [tokens, E] of every layer -> fp32 [2, D, E]: choices (without gradient), probabilities.

        ``shared``: shared prompts are computed once; ``rows``: tokens are in padded rows.
        """
        self._check(bool(logits))
        assert logits
        flat = [layer.reshape(-1, layer.shape[-1]) for layer in logits]
        if shared is not None:
            flat = [shared.full(layer, 0) for layer in flat]
        if rows is not None:
            flat = [rows.unpad(layer.view(*rows.index.shape, -1)) for layer in flat]
        lengths = batch.boundaries().diff()
        document = torch.repeat_interleave(lengths, output_size=flat[0].shape[0])
        return _DocumentSums.apply(self.visited, lengths, document, *flat)


class _SumsContext(FunctionContext):
    saved_tensors: tuple[Tensor, ...]  # document, then the logits


class _DocumentSums(Function):
    """Σ over layers and a document's tokens of the one-hot choices and of softmax(logits)."""

    @staticmethod
    def forward(
        ctx: _SumsContext, visited: int, lengths: Tensor, document: Tensor, *logits: Tensor
    ) -> Tensor:
        ctx.save_for_backward(document, *logits)
        probabilities = torch.zeros_like(logits[0], dtype=_wide(logits[0]))
        choices = torch.zeros_like(probabilities)
        for layer in logits:
            p = _softmax(layer)
            probabilities += p
            choices.scatter_add_(1, p.topk(visited, dim=-1).indices, torch.ones_like(p))
        # one reduction over documents for both
        both = torch.cat([choices, probabilities], dim=1)
        sums = torch.segment_reduce(both, "sum", lengths=lengths, axis=0, unsafe=True)
        return sums.view(len(lengths), 2, -1).transpose(0, 1)

    @staticmethod
    def backward(ctx: _SumsContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        document, *logits = ctx.saved_tensors
        # [tokens, E]: each token gets its document's gradient.
        d_p = grad[1].index_select(0, document)
        grads = []
        for layer in logits:
            p = _softmax(layer)
            # The softmax's backward; the choices have no gradient.
            grads.append((p * (d_p - (p * d_p).sum(-1, keepdim=True))).to(layer.dtype))
        return None, None, None, *grads


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits.to(_wide(logits)), dim=-1)


class RouterLoad:
    """Counts the tokens of each expert of each layer, fillers left out, while ``counting``.

    It counts at the call of the experts, so it sees the choices of each family's own router (groups and
    biases included). Counts stay on the device until a window ends.
    """

    def __init__(self, hf: HFModel) -> None:
        # called with (hidden states, chosen experts, their weights)
        self._layers = [m for m in hf.modules() if hasattr(m, "_apply_gate") and hasattr(m, "num_experts")]
        self._real: Tensor | None = None  # int64 [tokens as the experts see them]: 0 for fillers and padding
        self._counts: Tensor | None = None  # int64 [layers, experts]
        self._hooks = [
            layer.register_forward_pre_hook(self._hook(index)) for index, layer in enumerate(self._layers)
        ]

    @contextmanager
    def counting(
        self, batch: Batch, *, shared: SharedPrompts | None = None, rows: PaddedRows | None = None
    ) -> Iterator[None]:
        """Count inside the context, not in a later recomputation; without gradients nothing is counted."""
        if self._layers and torch.is_grad_enabled():
            real = (batch.document_ids >= 0).long()
            real = torch.repeat_interleave(
                real, batch.boundaries().diff(), output_size=batch.input_ids.shape[1]
            )
            if shared is not None:
                real = shared.kept(real, 0)
            self._real = real if rows is None else (real[rows.index] * rows.real).flatten()
        try:
            yield
        finally:
            self._real = None

    def stop(self) -> None:
        """Stop counting, since it would break the graphs of compiled layers."""
        for hook in self._hooks:
            hook.remove()
        self._layers = []

    def taken(self) -> Tensor | None:
        """Return the counts since the last call, int64 [layers, experts] on the device; None: none."""
        counts, self._counts = self._counts, None
        return counts

    def _hook(self, index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def count(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            if self._real is None:
                return
            with torch.no_grad():
                self._add(index, vars(layer)["num_experts"], args[1])

        return count

    def _add(self, index: int, experts: int, chosen: Tensor) -> None:
        assert self._real is not None
        if self._counts is None:
            self._counts = torch.zeros(len(self._layers), experts, dtype=torch.int64, device=chosen.device)
        weights = self._real[:, None].expand(chosen.shape).reshape(-1)
        # Fillers add 0 instead of being left out: shapes stay those of the batch.
        self._counts[index].scatter_add_(0, chosen.reshape(-1), weights)
