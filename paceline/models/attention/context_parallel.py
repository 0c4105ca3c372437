"""Context parallelism: the tokens of a micro-batch are sharded over a cp group; ranks communicate in
attention only.

Each rank has a block of consecutive tokens of the flat batch; a block may end anywhere in a document. Labels
are already shifted and position ids already computed, so only attention (``context_attention``) reads tokens
of other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.parallel.tp_regions import TP_AXIS, Group, block_of
from paceline.protocols.batch import IGNORE_INDEX, Batch

CP_AXIS = "cp"
ULYSSES, ALLGATHER = "ulysses", "allgather"


class ContextParallel:
    """The cp group and its method: ``ulysses`` (all-to-all: the whole sequence, some of the heads) or
    ``allgather`` (own queries, all keys and values).

    ``multiple``: each rank's block is padded to a multiple of it (the tp size under sequence parallelism).
    """

    def __init__(self, mesh: DeviceMesh, method: str, multiple: int = 1) -> None:
        if method not in (ULYSSES, ALLGATHER):
            raise ValueError(f"cp_method must be {ULYSSES} or {ALLGATHER}, not {method}")
        self.group: Group = mesh.get_group()
        self.method, self.multiple = method, multiple

    def split(self, batch: Batch) -> Batch:
        """Return this rank's block of ``batch``; document boundaries, ids and extras stay those of the whole
        batch.
        """
        full = padded(batch, self.group.size() * self.multiple)
        cut = {
            name: block_of(getattr(full, name), self.group, 1)
            for name in ("input_ids", "labels", "position_ids")
        }
        values: dict[str, Any] = {f.name: getattr(full, f.name) for f in fields(Batch)}
        return ContextBatch(**{**values, **cut, "places": None}, context=self)


def batch_sharder(mesh: DeviceMesh, *, method: str, sequence_parallel: bool) -> Callable[[Batch], Batch]:
    """Return the function that gives a rank of ``mesh`` its part of a micro-batch. Under context parallelism
    that is a block of tokens, else the whole batch, padded so that sequence parallelism can split it.

    ``mesh`` is a run's; axes of size 1 may be missing.
    """
    names = mesh.mesh_dim_names or ()
    multiple = mesh[TP_AXIS].size() if sequence_parallel and TP_AXIS in names else 1
    if CP_AXIS in names:
        return ContextParallel(mesh[CP_AXIS], method, multiple).split
    return lambda batch: padded(batch, multiple)


@dataclass(frozen=True)
class ContextBatch(Batch):
    """A rank's block of a micro-batch: tokens [1, T / cp], while ``cu_seqlens`` covers all T."""

    context: ContextParallel


def padded(batch: Batch, multiple: int) -> Batch:
    """Append a filler document (no labels, attended to by no other) to ``batch`` if T is not a multiple of
    ``multiple``.
    """
    missing = -batch.input_ids.shape[1] % multiple
    if not missing:
        return batch
    device = batch.input_ids.device
    end = batch.cu_seqlens[-1:] + missing
    return replace(
        batch,
        input_ids=F.pad(batch.input_ids, (0, missing)),
        labels=F.pad(batch.labels, (0, missing), value=IGNORE_INDEX),
        places=None,
        position_ids=torch.cat([batch.position_ids, torch.arange(missing, device=device)[None]], dim=1),
        cu_seqlens=torch.cat([batch.cu_seqlens, end]),
        max_seqlen=max(batch.max_seqlen, missing),
        document_ids=F.pad(batch.document_ids, (0, 1), value=-1),
        extras={name: F.pad(values, (0, 1)) for name, values in batch.extras.items()},
        tokens={name: F.pad(values, (0, missing)) for name, values in batch.tokens.items()},
    )


def check_context_parallel(root: Any, cp: int, method: str, tp: int = 1) -> None:
    """Check that a root module can run context-parallel. Raises ConfigError ``models.cp_padded`` or
    ``models.cp_heads``.
    """
    if root.attention.layout != "packed":
        raise _refused(
            codes.MODELS_CP_PADDED,
            "context parallelism shards packed micro-batches, but this model uses one padded row"
            " per document",
            root.attention.reason,
            "cp_size: 1",
        )
    if root.carries_state:
        raise _refused(
            codes.MODELS_CP_PADDED,
            "context parallelism gives a rank a part of each document, but this model has layers that pass a"
            " state from token to token",
            type(root.hf).__name__,
            "cp_size: 1",
        )
    heads = root.hf.config.get_text_config().num_attention_heads
    if method == ULYSSES and (heads // tp) % cp:
        raise _refused(
            codes.MODELS_CP_HEADS,
            f"Ulysses cannot divide {heads // tp} attention heads evenly among {cp} ranks",
            f"num_attention_heads: {heads}" + (f", tp_size: {tp}" if tp > 1 else ""),
            "set cp_method: allgather, or a cp_size that divides the heads",
        )


def shared_heads(key: Tensor, heads: int, ranks: int) -> Tensor:
    """Repeat the heads of a key or value [1, K, T, D] until ``ranks`` can split them, each next to the query
    heads that read it.

    ``heads`` is the number of query heads.
    """
    count = key.shape[1]
    if count % ranks == 0:
        return key
    return key.repeat_interleave(ranks // count if ranks % count == 0 else heads // count, dim=1)


def _refused(code: Code, what: str, found: str, hint: str) -> ConfigError:
    return ConfigError(code(what=what, where="training.parallelism.cp_size", found=found, hint=hint))
