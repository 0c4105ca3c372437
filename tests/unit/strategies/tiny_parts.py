"""A tiny root module, objective and learnable data that follow the protocols, for tests of strategies
without Transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from paceline.config.sections.training import TrainingSection
from paceline.plan.mesh import Mesh
from paceline.plan.plan import DdpOptions
from paceline.plan.strategy_options import NO_OPTIONS
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Output, Role

VOCAB, HIDDEN = 11, 8


class TinyRoot(RootModule):
    """Embedding, two linears with bias and a norm, a head; ``nll`` is summed over labels and touches every
    parameter even without one.
    """

    def __init__(
        self, dtype: torch.dtype = torch.float64, compute: torch.dtype | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        # registered in another order than they are used: DDP's first guess at its buckets is then wrong
        # (contract 9)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.down = nn.Linear(3 * HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.drop = nn.Dropout(dropout)
        for parameter in self.parameters():
            parameter.data = (
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64).mul_(0.3).to(dtype)
            )
        self.compute = compute
        self.refreshed = 0

    def forward(self, batch: Batch, ask: frozenset[Output]) -> dict[str, Tensor]:
        with torch.autocast("cpu", self.compute or torch.bfloat16, enabled=self.compute is not None):
            hidden = self.embed(batch.input_ids[0])
            hidden = hidden + self.down(self.drop(torch.tanh(self.up(hidden))))
            logits = self.head(self.norm(hidden))
        keep = batch.labels[0] != IGNORE_INDEX
        kept = logits[keep].float() if self.compute is not None else logits[keep]
        nll = nn.functional.cross_entropy(kept, batch.labels[0][keep], reduction="sum") + logits.sum() * 0.0
        found = {"nll": nll}
        if Output.CORRECT in ask:
            found["correct"] = (kept.argmax(-1) == batch.labels[0][keep]).sum()
        return found

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.named_parameters()

    def refresh_compute_weights(self) -> None:
        self.refreshed += 1


class TinyObjective:
    """One term, ``nll``, over the policy."""

    trains = (Role.POLICY,)
    frozen = ()
    reference_roles = ()
    window_means = None
    train_metrics = ()
    joint = None

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.NLL} if training else {Output.NLL, Output.CORRECT})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"nll": batch.num_labels()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {"nll": outputs["nll"]}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {"correct/nll": outputs["correct"]}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        return dict(means)


def make_batch(rows: list[int], labelled: bool = True) -> Batch:
    """Rows by index, of 3 to 9 tokens each; the token to predict is a fixed function of the token seen
    (learnable). -1 is a filler.
    """
    inputs, labels, lengths = [], [], []
    for row in rows:
        length = 2 if row < 0 else 3 + (row * 5) % 7
        tokens = (
            torch.zeros(2, dtype=torch.int64)
            if row < 0
            else torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(row))
        )
        target = (tokens * 3 + 1) % VOCAB
        target[-1] = IGNORE_INDEX
        if row < 0 or not labelled:
            target[:] = IGNORE_INDEX
        inputs.append(tokens)
        labels.append(target)
        lengths.append(length)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])
    real = sum(r >= 0 for r in rows)
    return Batch(
        torch.cat(inputs)[None],
        torch.cat(labels)[None],
        positions[None],
        bounds,
        max(lengths),
        torch.tensor(rows),
        real,
    )


def window(
    step: int, rank: int, world_size: int, rows_per_step: int = 16, accumulation: int = 2
) -> list[Batch]:
    """The rank's micro-batches of a step: the same global rows whatever the world size."""
    micro = rows_per_step // (world_size * accumulation)
    first = step * rows_per_step
    starts = [first + (j * world_size + rank) * micro for j in range(accumulation)]
    return [make_batch(list(range(s, s + micro))) for s in starts]


def plan(
    scaler: bool = False, world_size: int = 1, accumulation: int = 2, **training: object
) -> SimpleNamespace:
    """As much of a Plan as a strategy reads."""
    section = TrainingSection.model_validate(training)
    return SimpleNamespace(
        strategy="single",
        strategy_options=section.strategy_options,
        ddp_options=DdpOptions.of(section),
        precision=SimpleNamespace(scaler=scaler),
        num_nodes=1,
        mesh=Mesh(dp_replicate=world_size),
        batch=SimpleNamespace(accumulation=accumulation),
        engine=NO_OPTIONS,
    )


class MemoryReader:
    """A ShardReader over shards held in memory."""

    def __init__(self, shards: list) -> None:
        self.tensors = {(s.role, s.name, s.kind): s.tensor.clone() for s in shards}

    def has(self, role: str, name: str, kind: str) -> bool:
        return (role, name, kind) in self.tensors

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        return tuple(k for r, n, k in self.tensors if (r, n) == (role, name))

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        return tuple(self.tensors[role, name, kind].shape)

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype:
        return self.tensors[role, name, kind].dtype

    def read(self, role: str, name: str, kind: str) -> Tensor:
        return self.tensors[role, name, kind]

    def read_block(
        self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]
    ) -> Tensor:
        place = tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
        return self.tensors[role, name, kind][place]
