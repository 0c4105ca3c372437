"""Autograd functions with types that a checker understands. ``apply`` has the arguments and the result of the
subclass's own ``forward``, and the tensors kept for the backward are declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

P = ParamSpec("P")
Out = TypeVar("Out", covariant=True)


class HasForward(Protocol[P, Out]):
    """The interface of a subclass for ``Function.apply``."""

    @staticmethod
    def forward(ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Out: ...


class Function(torch.autograd.Function):
    """``torch.autograd.Function``, whose ``apply`` has no types, with those of the subclass's ``forward``."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls: type[HasForward[P, Out]], *args: P.args, **kwargs: P.kwargs) -> Out: ...


class FunctionContext(FunctionCtx):
    """The context of an autograd function; a subclass declares what the function keeps there. torch makes the
    contexts, these classes only describe them.
    """

    saved_tensors: tuple[Tensor | None, ...]  # None where None was saved
    needs_input_grad: tuple[bool, ...]

    if TYPE_CHECKING:

        def save_for_backward(self, *tensors: Tensor | None) -> None: ...
