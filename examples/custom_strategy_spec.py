"""What ``custom_strategy.CompressedDDP`` is, for the planner: memory, speed, checkpoints and what it goes
with are those of ``ddp``.

    PYTHONPATH=examples paceline plan config.yaml training.distributed_strategy=custom_strategy_spec:SPEC
    --nproc 2

A spec subclasses ``paceline.extend.StrategySpec`` (or a finished one) and is imported where the
plan is made: this module imports no torch, and names the class that does the work. ``strategy_options`` are
the options with their defaults: another name in ``training.strategy_options``, or a value of another type,
is refused at its line.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.extend import DDP_SPEC

SPEC = replace(
    DDP_SPEC,
    alone="",
    training_keys=frozenset(),
    implementation="custom_strategy:CompressedDDP",
    strategy_options={"dtype": "float16"},
)
