"""Change a module's class: its parameters, submodules and names stay; its forward changes, or reads other
weights.

``ComputeCopiesMixin`` keeps a module's own forward (fused experts, routers, norms, attention with sinks). It
hands the module low-precision copies of its parameters, and its input in their dtype, as in a model loaded in
that dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from torch import Tensor, nn

T = TypeVar("T")


def replace_forward(fused: type[T], kind: type) -> type[T]:
    """Return the class that computes as ``fused`` and falls back to ``kind``; cached, so that torch.compile
    sees one type for all layers.
    """
    return _joined(fused.__name__, (fused, kind))


def replace_base(kind: type[T], base: type) -> type[T]:
    """Return the class that computes as ``kind`` with ``base`` in place of its own base class."""
    return _joined(base.__name__, (kind, base))


def class_behind(kind: type, front: type) -> type:
    """Return the class that ``replace_forward`` put ``front`` before; ``kind`` itself if there is none.

    Other classes may have been put before it since.
    """
    kinds = kind.__mro__
    return kinds[kinds.index(front) + 1] if front in kinds else kind


@cache
def _joined(name: str, bases: tuple[type, ...]) -> type:
    return type(name, bases, {})


#: a copy of a parameter for the forward: its argument is the parameter
Copied = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LowPrecisionForward:
    """The way in which a module's own forward computes in low precision.

    copies   whether it reads low-precision copies (else its fp32 parameters)
    input    whether its first argument is cast to the dtype of the weights that it reads
    output   whether its result, a tensor, is cast to the dtype of its argument
    """

    copies: bool = True
    input: bool = True
    output: bool = True


_KEPT, _COPIED = "_paceline_kept_forward", "_paceline_copied"
_KNOWN = ("transformers.", "torch.")
_SINKS = frozenset({"sinks"})
_AFFINE = frozenset({"weight", "bias"})


def kept_forward(module: nn.Module) -> LowPrecisionForward | None:
    """Return how a module's forward is kept; None if it may not compute in the dtype of the weights that it
    reads.
    """
    if isinstance(module, ComputeCopiesMixin):
        kept: LowPrecisionForward = vars(module)[_KEPT]
        return kept
    if not type(module).__module__.startswith(_KNOWN):  # code from the hub may mean something else by a name
        return None
    name = type(module).__name__
    names = {key for key, value in module.named_parameters(recurse=False) if value is not None}
    if hasattr(module, "_apply_gate") or name.endswith("Experts"):  # the former marks what has several forms
        return LowPrecisionForward()
    if names == _SINKS:
        return LowPrecisionForward(input=False, output=False)
    if not names <= _AFFINE:
        return None
    if "Router" in name:
        return LowPrecisionForward(output=False)
    if "Norm" in name and "Gated" not in name:
        return LowPrecisionForward(copies=False)
    return LowPrecisionForward() if isinstance(module, nn.Linear) else None


class ComputeCopiesMixin(nn.Module):
    """Put in front of a module's class (``keep_forward``): hands its forward the copies."""

    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        """Call the module's own forward with its arguments, and return its result."""
        kept: LowPrecisionForward = vars(self)[_KEPT]
        copied: Copied = vars(self)[_COPIED]
        parameters = {name: p for name, p in self._parameters.items() if p is not None}
        read = {name: copied(p) if kept.copies else p for name, p in parameters.items()}
        came = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if kept.input and came is not None and came.is_floating_point:
            args = (args[0].to(next(iter(read.values())).dtype), *args[1:])
        # An attribute of the instance is found before the parameter of that name
        shadows = {name: value for name, value in read.items() if value is not parameters[name]}
        vars(self).update(shadows)
        try:
            out = super().forward(*args, **kwargs)
        finally:
            for name in shadows:
                del vars(self)[name]
        return out.to(came) if kept.output and came is not None and isinstance(out, Tensor) else out


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class whose forward a module computes: its own, also where it was swapped."""
    return class_behind(type(module), ComputeCopiesMixin)


def keep_forward(module: nn.Module, kept: LowPrecisionForward, copied: Copied) -> list[nn.Parameter]:
    """Let the forward of ``module`` read copies of its parameters ``copied``; return the parameters that need
    a copy."""
    if not isinstance(module, ComputeCopiesMixin):
        module.__class__ = replace_forward(ComputeCopiesMixin, type(module))
    vars(module).update({_KEPT: kept, _COPIED: copied})
    return list(module.parameters(recurse=False)) if kept.copies else []
