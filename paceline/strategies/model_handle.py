"""One model made trainable (or frozen) by a strategy, and access to its parameters on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from paceline.models.compute_dtype import compute_copy
from paceline.models.quantized_linear import scales_of
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.strategies.optimizers.quantized_state import TABLES
from paceline.strategies.optimizers.schedule_free import averaged


@dataclass
class Handle:
    """One model made trainable (or frozen) by a strategy.

    root       the role's root module, unwrapped
    module     what is called in training: ``root``, or its wrapper (DDP)
    optimizer  None if frozen
    scaler     the fp16 gradient scaler, or None
    """

    role: Role
    root: RootModule
    module: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None

    @property
    def roots(self) -> tuple[RootModule, ...]:
        """Every replica of the root in this process."""
        return (self.root,)

    @property
    def trained(self) -> bool:
        """Whether this model is trained (else frozen)."""
        return self.optimizer is not None

    @property
    def stepper(self) -> torch.optim.Optimizer:
        """The optimizer of a trained model."""
        assert self.optimizer is not None, f"the {self.role.value} model is frozen"
        return self.optimizer

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters, in the root's plain order."""
        return [p for _, p in self.root.plain_named_parameters() if p.requires_grad]

    def refresh(self) -> None:
        """Renew whatever is copied from the weights, after they have changed."""
        self.root.refresh_compute_weights()

    def averaged(self) -> AbstractContextManager[None]:
        """Inside the context the model has the weights that its optimizer averages (schedule-free), where it
        does: for evaluation, and for what rollouts compute. Enter it before ``Strategy.inference``.
        """
        return averaged(self.optimizer, self.refresh)

    def state_bytes(self) -> dict[str, int]:
        """Return the measured bytes of ``parameters``, ``gradients`` and ``optimizer`` on this rank.

        Parameters include low-precision copies and the scales of packed weights; optimizer bytes include
        moments but not step counters, nor lookup tables that all tensors share.
        """
        parameters = list(self.root.parameters())
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        return {
            "parameters": storage_bytes([*parameters, *map(compute_copy, parameters), *scales_of(self.root)]),
            "gradients": storage_bytes(p.grad for p in parameters if p.grad is not None),
            "optimizer": storage_bytes(
                v
                for state in states
                for k, v in state.items()
                if isinstance(v, Tensor) and v.ndim and k not in TABLES
            ),
        }


Handles = Mapping[Role, Handle]


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages behind ``tensors``, with padding, shared ones once; for a DTensor
    those of its local shard.
    """
    # by address: views of one storage count once
    return sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values())


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        with torch.no_grad():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        # a quantised moment has a tensor for its codes, its scales and its lookup table
        names = local.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(local) else None
        for plain in [local] if names is None else [getattr(local, name) for name in names]:
            yield plain.untyped_storage()


def as_they_are(parameters: Sequence[nn.Parameter]) -> AbstractContextManager[Sequence[Tensor]]:
    """Return the values of parameters that this rank has whole."""
    return nullcontext([parameter.detach() for parameter in parameters])


@dataclass(frozen=True)
class ParameterAccess:
    """Three functions of a strategy. The default: each rank holds whole parameters and reads its own rows.

    whole     a context of the whole values of some parameters, to be read; a collective where forwards are
    own_part  the memory of what this rank has of a parameter between two steps, of any shape
    of_first  a tensor that the first of the ranks has that read the same rows; collective among these, which
              give tensors of its shape and dtype
    """

    whole: Callable[[Sequence[nn.Parameter]], AbstractContextManager[Sequence[Tensor]]] = as_they_are
    own_part: Callable[[nn.Parameter], Tensor] = torch.Tensor.detach
    of_first: Callable[[Tensor], Tensor] = torch.Tensor.detach
