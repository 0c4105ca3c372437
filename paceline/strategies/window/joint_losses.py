"""Losses that compare all documents of a window, over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.protocols.algorithm import Objective, WindowVectors
from paceline.protocols.batch import Batch
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.world import World
from paceline.strategies.window.weights import WindowLosses


def joint_window(world: World, found: Sequence[Tensor], batches: Sequence[Batch]) -> WindowVectors:
    """Return the vectors of all ranks, without a graph, from those of this rank's micro-batches.
    Collective.
    """
    mine = [
        WindowVectors.alone(vectors.detach(), batch) for vectors, batch in zip(found, batches, strict=True)
    ]
    # One order on every rank: columns are sent without their names.
    names = sorted(mine[0].columns)
    parts = world.all_gather_rows(torch.cat([part.vectors for part in mine]))
    wide = sum_dtype(world.device)
    numbers = [
        torch.stack([part.real.to(wide), *(part.columns[name].to(wide) for name in names)], 1)
        for part in mine
    ]
    # Ranks may have different numbers of documents, which ``all_gather_rows`` allows.
    real, *columns = torch.cat(world.all_gather_rows(torch.cat(numbers))).unbind(1)
    # bool [documents of all ranks]: those whose gradients this rank carries on into its model.
    own = torch.zeros_like(real, dtype=torch.bool)
    start = sum(len(part) for part in parts[: world.rank])
    own[start : start + len(parts[world.rank])] = True
    return WindowVectors(torch.cat(parts), dict(zip(names, columns, strict=True)), real > 0, own)


def joint_gradients(
    world: World,
    algorithm: Objective,
    losses: WindowLosses,
    found: Sequence[Tensor],
    batches: Sequence[Batch],
) -> Sequence[Tensor]:
    """Return the gradient of the window's scaled loss by the vectors of each micro-batch of this rank, and
    add its sums to ``losses``. Collective.

    A rank counts its own queries, whose loss depends on the documents of all: their gradients are summed.
    """
    window = joint_window(world, found, batches)
    with torch.no_grad():
        metrics = algorithm.joint_metrics(window) if algorithm.train_metrics else {}
    # A leaf: the graph ends at the vectors, and each micro-batch goes on from them in its second forward.
    vectors = window.vectors.requires_grad_()
    total = losses.add_terms(algorithm.joint_losses(window), metrics)
    (gradient,) = torch.autograd.grad(total, vectors)
    # A document is a key in other ranks' losses too; its gradient is the sum of all of these.
    gradient = world.all_reduce_tensor(gradient)[window.own]
    return torch.split(gradient, [len(vectors) for vectors in found])
