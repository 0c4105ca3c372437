"""Muon for the matrices of hidden layers, AdamW for embeddings, head and vectors, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim._muon import _adjust_lr

if TYPE_CHECKING:
    from paceline.strategies.fsdp.state import Block

_EPS = 1e-7  # of the orthogonalisation, as in ``torch.optim.Muon``
ORTHOGONAL = "orthogonal"  # key of the parameter groups that Muon steps


class MuonWithAdamW(torch.optim.Optimizer):
    """``torch.optim.Muon`` over the groups with ``orthogonal``, ``torch.optim.AdamW`` over the others.

    Muon (Jordan et al. 2024; arXiv:2502.16982) orthogonalises the momentum of a whole matrix by five
    Newton-Schulz iterations. The momentum is kept in shards like its parameter. A matrix that is cut over
    ranks (``cut``) is gathered for the iterations. Every rank of the shards repeats them, so all take the
    same update. A tensor of three dims is a stack of matrices (fused experts). Each is orthogonalised by
    itself, without a gather where a rank has whole matrices.

    ``ns_dtype``: what the iterations are computed in. In bfloat16, torch's choice, the order of a gradient's
    sum may flip a digit of the momentum. The iterations carry it to about a hundredth of the update. That is
    their own distance from the exact factor, but losses on two meshes differ by some 2e-5. ``float32`` (or
    the gradient's own dtype, if it is wider) keeps every mesh within 1e-5 of one process. The planner takes
    it where the forward is computed in fp32 too.

    ``adjust_lr_fn`` scales the rate by the matrix' size as in ``torch.optim.Muon``. The default here,
    ``match_rms_adamw``, gives updates of AdamW's size, so that both take one learning rate.
    """

    def __init__(
        self,
        params: Iterable[dict[str, object]],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        ns_dtype: str = "bfloat16",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "betas": betas,
                "eps": eps,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_coefficients": tuple(ns_coefficients),
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
                "ns_dtype": ns_dtype,
                ORTHOGONAL: False,
            },
        )
        self.cut: Mapping[nn.Parameter, Block] = {}
        others = [group for group in self.param_groups if not group[ORTHOGONAL]]
        self._adamw: torch.optim.AdamW | None = None
        if others:  # the same groups, and the state in the same mapping
            # One optimizer for the strategy, two inside: schedules, checkpoints and clipping see a single
            # state.
            self._adamw = torch.optim.AdamW(others, fused=True)
            self._adamw.state = self.state

    def take_blocks(self, blocks: Iterable[Block]) -> None:
        """Take note of which parameters are shards."""
        self.cut = {block.local: block for block in blocks}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step over all parameters that have a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            if group[ORTHOGONAL]:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._step_matrix(parameter, group)
        if self._adamw is not None:
            self._adamw.step()
        return loss

    def _step_matrix(self, parameter: nn.Parameter, group: Mapping[str, object]) -> None:
        """One parameter's step; ``_single_tensor_muon`` of torch 2.13 with the gather in its middle."""
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        momentum, rate = float(str(group["momentum"])), float(str(group["lr"]))
        buffer = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        # Nesterov's momentum as in ``torch.optim.Muon``: a step ahead along the averaged gradient.
        update = grad.lerp(buffer, momentum) if group["nesterov"] else buffer.clone()
        update = update.to(_dtype(update, group))  # before the gather, of which it may be half
        cut = self.cut.get(parameter)
        if cut is None or not cut.cuts_matrices:
            update = orthogonal_update(update, group)
        else:
            update = cut.own(orthogonal_update(cut.gathered(update), group))
        # The whole matrix's shape, of which a rank may hold a part: the rate must not depend on the mesh.
        matrix = parameter.shape[-2:] if cut is None else torch.Size(cut.global_shape[-2:])
        scaled = _adjust_lr(rate, str(group["adjust_lr_fn"]), matrix)
        parameter.mul_(1 - rate * float(str(group["weight_decay"])))
        parameter.add_(update, alpha=-scaled)


def _dtype(update: Tensor, group: Mapping[str, object]) -> torch.dtype:
    """Return the dtype of the iterations."""
    if group["ns_dtype"] == "bfloat16":
        return torch.bfloat16
    return torch.promote_types(update.dtype, torch.float32)


def orthogonal_update(update: Tensor, group: Mapping[str, object]) -> Tensor:
    """Return the matrix, or each matrix of a stack, with singular values near 1, in its own dtype.

    ``_zeropower_via_newtonschulz`` of torch 2.13, which computes in bfloat16 only.
    """
    if update.ndim > 2:
        each = [orthogonal_update(matrix, group) for matrix in update]
        return torch.stack(each) if each else update
    coefficients = group["ns_coefficients"]
    assert isinstance(coefficients, (tuple, list))
    a, b, c = coefficients
    # The Gram matrix of the shorter side costs less.
    tall = update.size(0) > update.size(1)
    x = update.T if tall else update
    # The Frobenius norm bounds the spectral norm: singular values up to 1, where the iteration converges.
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(int(str(group["ns_steps"]))):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
