"""A foreign checkpoint, once it is found and its pickles are read: named tensors that load when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.checkpoint import codes
from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.protocols.roles import Role

Moments = dict[str, dict[str, LazyTensor]]  # parameter → kind (exp_avg …) → tensor


@dataclass
class ForeignState:
    """What was found. ``form``: of which program, in words. ``weights`` by the names that the file has.

    role       the part that the model plays
    trained    the shapes of what is trained, in the model's order; ``decaying``: what weight decay applies to
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
    trained: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    decaying: frozenset[str] = frozenset()


#: What is said of a step that no file of the folder has, and of a scheduler that is not brought over
NO_STEP = "the step: nothing in the folder says it, so it is 0; give it with --step"
SCHEDULER = "the learning rate's scheduler and client state: set schedule, warm-up and max_steps as they were"
#: What Adam keeps of a parameter; ``ADAM`` is our name of it. Other optimizers are not brought over.
ADAM_KINDS = frozenset({"exp_avg", "exp_avg_sq", "step"})
ADAM = "adamw_torch"


def misfit(what: str, where: str, found: str, hint: str = "") -> CheckpointError:
    """Return the error of files that do not fit one another."""
    return CheckpointError(codes.CONVERT_MISFIT(what, where, found, hint or "convert another step"))


def incomplete(what: str, where: str, found: str = "") -> CheckpointError:
    """Return the error of a part that is missing."""
    return CheckpointError(codes.CONVERT_INCOMPLETE(what, where, found, "copy the whole folder"))


def some_of(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
