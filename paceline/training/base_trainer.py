"""Change how a model is distributed: subclass ``BaseTrainer`` and wrap ``self.model`` in ``__init__``.

A ``BaseTrainer`` is a strategy that its author wraps by hand; everything else (windows, exact losses,
clipping, checkpoints, resume) is that of ``ddp``. Start it with ``training.distributed_strategy:
my_module:MyTrainer``, or from its own file:

    if __name__ == "__main__":
        sys.exit(MyTrainer.train("config.yaml"))

and run it with ``python my_file.py``, or ``torchrun --nproc_per_node 2 my_file.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn

from paceline.data.tokenizer.load import load_tokenizer
from paceline.launch.program import importable_program
from paceline.models.factory import HFModelFactory
from paceline.plan.features.freezing import Freezing
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.protocols.model import ModelFactory, RootModule
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.strategies.ddp import DDP
from paceline.strategies.model_handle import Handle


class BaseTrainer(DDP):
    """Attributes that a subclass has after ``super().__init__(*args, **kwargs)``:

    model           the model on its device (forward takes a ``Batch``); assign a wrapped one, whose
                    backward must average gradients over all ranks
    is_distributed  whether there is more than one rank
    local_rank      the rank's number on its node; ``device`` its torch device
    """

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.is_distributed = world.world_size > 1
        self.local_rank = world.local_rank
        self.device = world.device
        self._root = build_model(world, plan)
        self.model: nn.Module = self._root

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> Handle:
        """Return the handle of the model built in ``__init__``, with its optimizer."""
        return super().prepare(role, cast(ModelFactory, lambda: self._root), optimizer)

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return ``self.model`` as the subclass wrapped it; if it did not, wrap with DDP as configured."""
        return super().wrap(role, root) if self.model is root else self.model

    @classmethod
    def train(cls, config: str | Path, *overrides: str) -> int:
        """Train with this class in this process and return the exit code; under torchrun as one rank of
        several.

        ``overrides`` are ``key=value``.
        """
        from paceline.training.rank import main

        # The checks before the start run in a process whose ``__main__`` is another program
        module = importable_program() if cls.__module__ == "__main__" else cls.__module__
        settings = [*overrides, f"training.distributed_strategy={module}:{cls.__qualname__}"]
        return main(["--config", str(config), *(part for setting in settings for part in ("--set", setting))])


def build_model(world: World, plan: Plan) -> RootModule:
    """Build the policy's root module as a run of ``plan`` does."""
    config = plan.config
    factory = HFModelFactory(
        model=config.model,
        role=Role.POLICY,
        vocab_size=len(load_tokenizer(config.model)),
        seed=config.training.seed,
        compute_dtype=getattr(torch, plan.precision.compute),
        attention=plan.attention,
        recompute=plan.recompute,
        recompute_keeps=plan.recompute_keeps,
        device=world.device,
        compile=plan.compile,
        freezing=Freezing.of(plan),
        vision=plan.vision,
    )
    return factory()
