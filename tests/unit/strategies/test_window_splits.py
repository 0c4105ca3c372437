"""A loss with a mean over the whole batch inside: the same step and the same evaluation however the global
batch is cut.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support import TINY_LLAMA, write_labelled
from tiny_parts import plan

from paceline.algorithms.preference.kto import KTO
from paceline.config.load import load_config
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.models.factory import HFModelFactory
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.roles import Output, Role
from paceline.protocols.window import StepResult
from paceline.runtime.process_group.world import World
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner
from paceline.training.evaluation import evaluate
from paceline.training.loop.window_source import BatchLayout, Epochs, WindowSource

ROWS, GLOBAL = 22, 8
MODEL = {**TINY_LLAMA, "initializer_range": 0.3}


class Run:
    """Policy and reference of their own weights, in float64, on one process."""

    def __init__(self, folder: Path, tokenizer: Path, *, packing: bool) -> None:
        rows = write_labelled(folder / "rows.json", ROWS)
        flags = {
            "model.config": MODEL,
            "model.tokenizer": str(tokenizer),
            "model.dtype": "float64",
            "data.train": str(rows),
            "data.max_length": 96,
        }
        config = load_config(None, flags=flags).config
        prepared = prepare(
            config.data, config.model, seed=0, cache_dir=folder / "cache", kind=row_kind("labelled")
        )
        made = {"seq_len": 96, "packing": packing, "seed": 3, "pad_token_id": prepared.pad_token_id}
        self.rows, self.held_out = (
            PackedSource(prepared.train, **made),
            PackedSource(prepared.train, **made, shuffle=False),
        )
        self.strategy = make_strategy("single", World.single(), plan())  # type: ignore[arg-type]
        kinds = {"compute_dtype": torch.float64, "master_dtype": torch.float64}
        self.handles = {
            role: self.strategy.prepare(role, HFModelFactory(config.model, role, seed=seed, **kinds), spec)
            for role, seed, spec in (
                (Role.POLICY, 2, OptimizerSpec(name="sgd", learning_rate=0.1)),
                (Role.REFERENCE, 1, None),
            )
        }
        self.algorithm, self.runner = KTO(beta=0.3, undesirable_weight=1.6), make_runner(self.strategy)

    def step(self, number: int, micro: int) -> StepResult:
        """One step of ``GLOBAL`` rows in micro-batches of ``micro``; its weights are put back."""
        before = {n: p.detach().clone() for n, p in self.handles[Role.POLICY].root.named_parameters()}
        cut = BatchLayout(micro, GLOBAL // micro, 0, 1)
        window = WindowSource(self.rows, cut, Epochs((3,), 3), 0, others="mismatched").window(number)
        found = self.runner.train_window(
            self.handles, window.micro_batches, self.algorithm, lr=0.1, max_grad_norm=1.0
        )
        for name, parameter in self.handles[Role.POLICY].root.named_parameters():
            parameter.data.copy_(before[name])
        return found

    def kl(self) -> float:
        """Of the whole set, one micro-batch: max(0, mean of log π - log π_ref) over each prompt with the
        answer before it.
        """
        everything = range(self.held_out.num_rows(0))
        batch = self.held_out.mismatched(0, list(everything), everything)
        with torch.no_grad():
            found = [
                self.handles[r].root(batch, frozenset({Output.LOGPROBS}))["logprobs"].sum()
                for r in (Role.POLICY, Role.REFERENCE)
            ]
        return max(0.0, float(found[0] - found[1]) / len(batch.document_ids))


@pytest.mark.parametrize("packing", [False, True])
def test_a_step_and_an_evaluation_are_the_same_under_every_split(
    tmp_path: Path, tokenizer_dir: Path, packing: bool
) -> None:
    run = Run(tmp_path, tokenizer_dir, packing=packing)
    last = math.ceil(run.rows.num_rows(0) / GLOBAL) - 1  # partly fillers
    baselines = []
    for number in sorted({0, 1, last}):
        whole = run.step(number, GLOBAL)
        baselines.append(whole.extras["kl"])
        assert whole.grad_norm and whole.grad_norm > 1e-3
        for micro in (4, 1):
            part = run.step(number, micro)
            assert part.losses == pytest.approx(whole.losses, abs=1e-12) and part.weights == whole.weights
            assert part.grad_norm == pytest.approx(whole.grad_norm, rel=1e-10)
            assert part.extras == pytest.approx(whole.extras, abs=1e-11)
    told = [
        evaluate(run.runner, run.handles, run.algorithm, run.held_out, BatchLayout(m, 1, 0, 1))
        for m in (1, 5, 32)
    ]
    kl = run.kl()
    assert max(baselines) > 0.01 and kl > 0.01 and told[0]["eval_kl"] == pytest.approx(kl, abs=1e-11), (
        "it must do something"
    )
    assert told[0]["eval_rows"] == run.held_out.num_rows(0)
    assert told[1] == pytest.approx(told[0], abs=1e-11) and told[2] == pytest.approx(told[0], abs=1e-11)
