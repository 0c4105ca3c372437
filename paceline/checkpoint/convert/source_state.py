"""A foreign checkpoint, once it is found and its pickles are read: named tensors that load when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.convert.pickle_reader.torch_tensors import TensorInFile, refused_by_name
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.protocols.roles import Role


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of known dtype and shape; ``load`` reads it. Raises CheckpointError."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], Tensor]

    @staticmethod
    def stored(tensor: TensorInFile, where: str) -> LazyTensor:
        """Return a tensor of a file of torch.save."""

        def load() -> Tensor:
            with refused_by_name(where):
                return tensor.load()

        return LazyTensor(tensor.dtype, tensor.shape, load)

    @staticmethod
    def number(value: float) -> LazyTensor:
        """Return a number as an optimizer's ``step`` is kept: a float32 scalar."""
        return LazyTensor(torch.float32, (), lambda: torch.tensor(value, dtype=torch.float32))


Moments = dict[str, dict[str, LazyTensor]]  # parameter → kind (exp_avg …) → tensor


@dataclass
class ForeignState:
    """What was found. ``form``: of which program, in words. ``weights`` by the names that the file has.

    role       the part that the model plays
    moments    by the same names; empty where there are none
    optimizer  our name of what has such moments
    scaler     scale and growth tracker of fp16's scaler, where there is one
    adapter    the contents of adapter_config.json, where the weights are an adapter's
    left       what was not brought over, one sentence each
    """

    form: str
    step: int
    weights: dict[str, LazyTensor]
    moments: Moments = field(default_factory=dict)
    optimizer: str = ""
    scaler: tuple[float, int] | None = None
    adapter: JsonObject | None = None
    left: list[str] = field(default_factory=list)
    role: str = Role.POLICY.value


#: What Adam keeps of a parameter; ``ADAM`` is our name of it. Other optimizers are not brought over.
ADAM_KINDS = frozenset({"exp_avg", "exp_avg_sq", "step"})
ADAM = "adamw_torch"


def misfit(what: str, where: str, found: str, hint: str = "") -> CheckpointError:
    """Return the error of files that do not fit one another."""
    return CheckpointError(codes.CONVERT_MISFIT(what, where, found, hint or "convert another step"))


def incomplete(what: str, where: str, found: str = "") -> CheckpointError:
    """Return the error of a part that is missing."""
    return CheckpointError(codes.CONVERT_INCOMPLETE(what, where, found, "copy the whole folder"))
