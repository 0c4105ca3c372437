"""The modules whose gradients GaLore projects: some must be there."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.registries.optimizers import BUILT
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.model.parameters import parameters_of, projected
from paceline.plan.model.read_shape import ModelShape
from paceline.plan.parts import OptimizerSpec


def check_targets(optimizer: OptimizerSpec, shape: ModelShape | None) -> Iterator[Diagnostic]:
    """Refuse modules of which no matrix is projected: all weights would be stepped by AdamW."""
    known, targets = BUILT.get(optimizer.name), optimizer.target_modules
    if known is None or not known.projects or not targets or shape is None:
        return
    names = [(p.name, len(p.shape)) for p in parameters_of(shape)]
    if names and not any(projected(name, dims, targets) for name, dims in names):
        where, found = "training.optim_target_modules", ", ".join(targets)
        yield codes.PLAN_OPTIM_TARGET_MODULES(where, found, name=optimizer.name)
