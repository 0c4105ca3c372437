"""What the optimizer keeps of a parameter under each layout, as far as the search counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import BUILT, parse_optim_args, supports
from paceline.config.sections.training import TrainingSection
from paceline.plan.features.precision import rounds
from paceline.plan.model.parameter_list import targets_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, OptimizerSpec
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.local_tensors import LocalTensor, pieces_of
from paceline.plan.workload.state_bytes import piece_moments
from paceline.plan.workload.step_spec import Storage, StrategyLayout

_ADAM = 8.0  # bytes of AdamW's moments a parameter, which the layouts' tables have


@dataclass(frozen=True)
class OptimizerStates:
    """``moments``: bytes a trained parameter; ``bf16_weights``: weights and gradients in bfloat16 alone;
    ``computes_bf16``: products are computed in it.
    """

    optim: str = "adamw_torch_fused"
    moments: float = _ADAM
    bf16_weights: bool = False
    computes_bf16: bool = True

    @classmethod
    def of(
        cls, pieces: Sequence[LocalTensor], optimizer: OptimizerSpec, *, bf16_weights: bool
    ) -> OptimizerStates:
        """Return the states of ``optimizer`` on the trained ``pieces``; AdamW's where it or they are
        unknown.
        """
        trained = [piece for piece in pieces if piece.trained]
        count = sum(piece.numel for piece in trained)
        if not count or optimizer.name not in BUILT:
            return cls(optimizer.name, bf16_weights=bf16_weights)
        total = sum(piece_moments(piece, optimizer) for piece in trained)
        return cls(optimizer.name, total / count, bf16_weights)

    @classmethod
    def configured(
        cls, training: TrainingSection, shape: ModelShape, adapter: AdapterSpec | None
    ) -> OptimizerStates:
        """Return the states of a job whose precision is not resolved yet. Raises ConfigError."""
        bf16 = training.pure_bf16 or rounds(training.optim)
        optimizer = OptimizerSpec(
            training.optim,
            args=parse_optim_args(training.optim_args),
            target_modules=targets_of(training.optim_target_modules),
        )
        return cls.of(pieces_of(shape, adapter, 2 if bf16 else 4) or (), optimizer, bf16_weights=bf16)

    @property
    def saved(self) -> float:
        """Bytes a trained parameter in a checkpoint: the weight, its average if there is one, the moments."""
        row, weight = BUILT.get(self.optim), 2.0 if self.bf16_weights else 4.0
        return weight * (2 if row is not None and row.averaged else 1) + self.moments

    def pure_bf16(self) -> OptimizerStates | None:
        """Return the states with weights in bfloat16 alone, whose moments torch's optimizers keep so, too;
        None where they are so already, or cannot be.
        """
        row = BUILT.get(self.optim)
        if self.bf16_weights or not self.computes_bf16 or (row is not None and row.averaged):
            return None
        return replace(
            self,
            moments=self.moments / 2
            if (row is None or (not row.package and not row.factored))
            else self.moments,
            bf16_weights=True,
        )

    def storage(self, layout: StrategyLayout) -> Storage:
        """Return the layout's bytes a parameter with these states."""
        layout_storage = layout.storage
        if self.bf16_weights:
            return Storage(2.0, 2.0, self.moments, layout_storage.sent)
        return replace(layout_storage, optimizer=layout_storage.optimizer - _ADAM + self.moments)

    def allows(self, layout: StrategyLayout) -> bool:
        """Whether the layout's strategy trains with this optimizer, and on such weights."""
        spec = strategy_spec(layout.strategy)
        if self.bf16_weights and (not spec.bf16_masters or layout.tp or layout.pp or layout.cp):
            return False
        return supports(self.optim, spec.state_split)
