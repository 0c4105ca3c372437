"""Where in a model a number that is not finite comes up first, seen by hooks in one forward and backward.

A module ends its forward after the modules inside it, and before those that follow. So the first output that
is not finite comes from the module that made it. The same holds for gradients, backwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from paceline.protocols.batch import Batch

WEIGHT, OUTPUT, LOSS, GRADIENT, PARAMETER = "weight", "output", "loss", "gradient", "parameter"
ORDER = (WEIGHT, OUTPUT, LOSS, GRADIENT, PARAMETER)  # of a window: what comes first
_MODEL = "hf"  # the model inside a root, or inside a stage of a pipeline
_WORDS = {
    WEIGHT: "the weight {0} itself",
    OUTPUT: "the output of {0} in the forward",
    LOSS: "the loss, whose model has finite outputs",
    GRADIENT: "the gradient of the output of {0} in the backward",
    PARAMETER: "the gradient of {0}, that of its output being finite",
}
_Hook = Callable[[Tensor], None]
#: What a module is called with, or returns.
Values = Tensor | Batch | str | float | None | tuple["Values", ...] | list["Values"] | Mapping[str, "Values"]


@dataclass(frozen=True)
class NotFinite:
    """``kind`` (of ``ORDER``) and module or parameter; ``places``: indices of the documents in it, empty if
    they are not known.
    """

    kind: str
    name: str
    places: tuple[int, ...] = ()

    def describe(self) -> str:
        return _WORDS[self.kind].format(self.name or "the model")


class NonFiniteWatch:
    """Inside ``on``, notes what is not finite in a micro-batch: ``first``, and ``parameters``, those whose
    gradients are not, in the order of the backward.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.first: NotFinite | None = None
        self.parameters: dict[str, None] = {}
        self._removers: list[RemovableHandle] = []

    @contextlib.contextmanager
    def on(self, roots: Iterable[nn.Module]) -> Iterator[None]:
        """Watch these models. Compiled layers run uncompiled."""
        for root in roots:
            for name, module in root.named_modules():
                self._watch(module, plain_name(name))
        try:
            # Hooks inside a compiled layer would be traced away, or recompile it.
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for remover in self._removers:
                remover.remove()

    def note(self, kind: str, name: str, value: Tensor | None = None) -> None:
        """Keep what came first."""
        if self.first is None:
            self.first = NotFinite(kind, name, () if value is None else self._documents(value))

    def loss_is_not_finite(self) -> None:
        """Note that the loss of the micro-batch is wrong, from which the gradients then are."""
        # Gradients are seen before the loss is read, though the loss is their cause.
        if self.first is None or self.first.kind in (GRADIENT, PARAMETER):
            self.first = NotFinite(LOSS, "")

    def _watch(self, module: nn.Module, name: str) -> None:
        hooked: dict[int, nn.Parameter] = {}

        def before(_: nn.Module, args: tuple[Values, ...]) -> None:
            for local, parameter in module.named_parameters(recurse=False):
                full = f"{name}.{local}" if name else local
                if not_finite(parameter.detach()):
                    self.note(WEIGHT, full)
                # A module called twice (gradient checkpointing) would otherwise hook its parameters twice.
                if parameter.requires_grad and id(parameter) not in hooked:
                    hooked[id(parameter)] = parameter
                    self._removers.append(_hooked(parameter, self._of_parameter(full)))

        def after(_: nn.Module, args: tuple[Values, ...], output: Values) -> None:
            for value in tensors_in(output):
                if not_finite(value.detach()):
                    self.note(OUTPUT, name, value.detach())
                if value.requires_grad:
                    _hooked(value, self._of_output(name))

        self._removers.append(module.register_forward_pre_hook(before))
        self._removers.append(module.register_forward_hook(after))

    def _of_parameter(self, name: str) -> _Hook:
        def look(gradient: Tensor) -> None:
            if not_finite(gradient):
                self.parameters[name] = None
                self.note(PARAMETER, name)

        return look

    def _of_output(self, name: str) -> _Hook:
        def look(gradient: Tensor) -> None:
            if not_finite(gradient):
                self.note(GRADIENT, name, gradient)

        return look

    def _documents(self, value: Tensor) -> tuple[int, ...]:
        """Return the documents at whose tokens ``value`` is not finite, if it has one row per token."""
        tokens = int(self._batch.cu_seqlens[-1])
        if value.ndim < 2 or value.shape[0] != 1 or value.shape[1] < tokens or isinstance(value, DTensor):
            return ()
        # bool [tokens]: whether any number of this token is not finite.
        wrong = ~value[0].reshape(value.shape[1], -1).isfinite().all(1)
        ends = self._batch.cu_seqlens[1:].to(wrong.device)
        # ``right``: a token at a document's end offset is the first of the next document.
        hit = torch.bucketize(wrong[:tokens].nonzero().flatten(), ends, right=True)
        return tuple(sorted(set(hit.tolist())))


def _hooked(value: Tensor, hook: _Hook) -> RemovableHandle:
    """Call ``hook`` with the gradient of ``value``."""
    return torch.autograd.graph.register_multi_grad_hook((value,), hook, mode="any")


def plain_name(name: str) -> str:
    """Return a module's name in its Hugging Face model; that of a wrapper stays."""
    parts = name.split(".")
    places = [i for i, part in enumerate(parts) if part == _MODEL]
    return ".".join(parts[places[0] + 1 :]) if places else name


def not_finite(value: Tensor) -> bool:
    """Whether ``value`` holds NaN or infinity; masks and routers use minus infinity as a word of its own."""
    local = (
        value.to_local() if isinstance(value, DTensor) else value
    )  # a question to all would be a collective
    if not local.is_floating_point() or not local.numel():
        return False
    return bool((local.isnan() | (local == torch.inf)).any())


def tensors_in(value: Values) -> Iterator[Tensor]:
    """Yield the tensors in what a module returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from tensors_in(getattr(value, f.name))
