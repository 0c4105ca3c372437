"""The three lines that are printed of a plan before its training."""

from __future__ import annotations

import dataclasses
from typing import Any

import test_make_plan

from paceline.core.diagnostics import Diagnostic
from paceline.launch.prediction_ledger import VARIABLE, before_training
from paceline.plan.explain import GLOBAL_BATCH, overview
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.runlog.lines import VERBOSE

config, plan_of = test_make_plan.config, test_make_plan.plan_of


def test_three_lines_say_what_where_and_how_large(config: Any) -> None:
    plan = plan_of(config({}))
    lines = overview(plan).splitlines()
    assert [line[:12].strip() for line in lines] == ["what", "where", "how large"]
    assert (
        plan.algorithm in lines[0]
        and f"{plan.world_size} process" in lines[1]
        and lines[1].endswith("outputs/x")
    )
    assert f"{plan.batch.global_batch} rows of {plan.seq_len} tokens" in lines[2]


def test_adapters_and_the_expected_memory_are_named(config: Any) -> None:
    adapter = AdapterSpec(16, 32, quantization=Quantization(4))
    plan = dataclasses.replace(plan_of(config({})), adapter=adapter)
    text = overview(plan, 3 * 2**30)
    assert "LoRA of rank 16 on 4-bit weights" in text and "about 3.00 GiB in all" in text


def test_unknown_sizes_are_left_out(config: Any) -> None:
    plan = dataclasses.replace(plan_of(config({})), shape=None, memory=None)
    assert "parameters" not in overview(plan) and overview(plan).splitlines()[2].endswith("tokens per step")


def test_verbose_prints_every_decision(config: Any) -> None:
    """A default that cannot act here is no request that was refused, so nothing calls it not applied."""
    quiet = {VARIABLE: "off"}
    plan = plan_of(config({}))
    text = before_training(plan, {**quiet, VERBOSE: "1"})
    assert all(d.subject in text for d in plan.decisions) and "not applied" not in text
    assert before_training(plan, quiet) == overview(plan)


def test_the_rows_that_a_resume_keeps_are_those_of_a_step(config: Any) -> None:
    """On other ranks the config's batch is another number of rows: 16 were printed where 8 were trained."""
    plan = plan_of(config({}))
    kept = Diagnostic("resume.batch_resplit", "kept", evidence={GLOBAL_BATCH: 3 * plan.batch.global_batch})
    assert f"{3 * plan.batch.global_batch} rows of" in overview(plan, findings=[kept])
