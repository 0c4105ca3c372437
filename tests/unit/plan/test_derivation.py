"""``paceline plan --explain``: the numbers that it prints give the terms of the forecast."""

from __future__ import annotations

import ast
import operator
import os
from itertools import chain

import pytest

from paceline.cli.planning import ModelJob, forecast_of_model
from paceline.plan.cost.derivation import derived, memory_terms, time_terms
from paceline.plan.cost.search import GIB

os.environ.setdefault("PACELINE_CALIBRATION", "off")
OPERATORS = {ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Add: operator.add, ast.Pow: operator.pow}


def computed(numbers: str) -> float:
    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int | float), ast.dump(node)
        return float(node.value)

    return value(ast.parse(numbers.replace("×", "*").replace("^", "**"), mode="eval").body)


@pytest.mark.parametrize(
    ("job", "hardware"),
    [
        (ModelJob("llama-3-8b"), "8xH100"),
        (ModelJob("llama-3-70b"), "64xH100"),
        (ModelJob("qwen2.5-7b", lora=16, bits=4), "2x4090"),
        (ModelJob("gpt2-xl", algorithm="ppo"), "4xA100"),
    ],
)
def test_formulas_with_numbers_give_their_terms(job: ModelJob, hardware: str) -> None:
    told = forecast_of_model(job, hardware)
    derivations = 0
    for row in chain(told.rows, told.leanest):
        terms = memory_terms(row)
        assert sum(term.value for term in terms) == pytest.approx(row.bytes / GIB, rel=1e-6), row.strategy
        for term in terms:
            if term.numbers:
                derivations += 1
                assert computed(term.numbers) == pytest.approx(term.value, rel=0.006, abs=2e-3), (
                    row.strategy,
                    term,
                )
        seconds = sum(term.value for term in time_terms(row))
        assert seconds == pytest.approx(row.speed.step, rel=0.01), row.strategy
        assert max(map(len, derived(row).splitlines())) <= 130
    assert derivations > (1 if job.lora else 4) * len(told.rows)
