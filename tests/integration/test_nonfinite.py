"""A loss or a gradient that is not a number is traced to module, rank, micro-batch and row, on all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, instruction_rows
from test_train import events_of, train
from transformers import AutoTokenizer

from paceline.runlog.events import Error

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
ROW = 23  # counted from 1; the only one with the sign
SIGN = "~"
MINE = '''
"""Strategies whose models answer one token with NaN, in the forward or in the backward of a layer."""
import torch
from paceline.strategies.ddp import DDP
from paceline.strategies.deepspeed.strategy import DeepSpeed
from paceline.strategies.fsdp.strategy import FSDP
from paceline.strategies.pipeline.strategy import Pipeline
from paceline.strategies.strategy import Single


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, hit):
        ctx.save_for_backward(hit)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        (hit,) = ctx.saved_tensors
        return gradient.masked_fill(hit, torch.nan), None


class Poisoned:
    def prepare(self, role, build, optimizer):
        handle = super().prepare(role, build, optimizer)
        for name, module in handle.root.named_modules():
            if name.endswith("embed_tokens"):
                module.register_forward_hook(self.poison)
        return handle

    def poison(self, module, args, output):
        hit = (args[0] == {token}).unsqueeze(-1)
        return Wrong.apply(output, hit) if {backward} else output.masked_fill(hit, torch.nan)


class OfSingle(Poisoned, Single): ...


class OfDdp(Poisoned, DDP): ...


class OfFsdp(Poisoned, FSDP): ...


class OfTp(Poisoned, FSDP): ...


class OfZero(Poisoned, DeepSpeed): ...


class OfPipeline(Poisoned, Pipeline): ...
'''


@pytest.mark.parametrize(
    ("strategy", "backward"),
    [
        ("OfDdp", False),
        ("OfDdp", True),
        pytest.param("OfSingle", False, marks=pytest.mark.slow),
        ("OfFsdp", False),
        pytest.param("OfFsdp", True, marks=pytest.mark.slow),
        pytest.param("OfZero", False, marks=pytest.mark.slow),
        ("OfZero", True),
        ("OfPipeline", False),
        pytest.param("OfPipeline", True, marks=pytest.mark.slow),
        pytest.param("OfTp", False, marks=pytest.mark.slow),
        pytest.param("OfTp", True, marks=pytest.mark.slow),
    ],
)
def test_a_number_that_is_none_is_traced_to_its_row(
    strategy: str,
    backward: bool,
    tiny: Tiny,
    paceline: Callable[..., Run],
    tmp_path: Path,
    tokenizer_dir: Path,
) -> None:
    rows = instruction_rows(60)
    rows[ROW - 1]["output"] += SIGN
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    [token] = AutoTokenizer.from_pretrained(tokenizer_dir).encode(SIGN, add_special_tokens=False)
    text = MINE.replace("{token}", str(token)).replace("{backward}", str(backward))
    (tmp_path / "mine.py").write_text(text)
    ranks = 1 if strategy == "OfSingle" else 2
    config = tiny(distributed_strategy=f"mine:{strategy}", gradient_accumulation_steps=2, max_steps=20)
    config["data"] |= {"train": str(tmp_path / "rows.json"), "max_length": 128}
    if strategy == "OfPipeline":
        config["training"]["parallelism"] = {"pp_size": 2}
    if strategy == "OfTp":
        config["training"]["parallelism"] = {"tp_size": 2}
    done = train(paceline, config, tmp_path, ranks)
    assert done.code == 1
    said = []
    for rank in range(ranks):
        [error] = [e for e in events_of(tmp_path / "run", rank) if isinstance(e, Error)]
        said.append(error.diagnostic)
    assert {d.code for d in said} == {"training.nonfinite"} and len({d.found for d in said}) == 1
    traced = said[0].evidence["traced"]
    if backward:
        assert traced["what"].startswith("the gradient of model.embed_tokens.weight")
        assert f"{tmp_path / 'rows.json'}:{ROW}" in traced["rows"]
    else:
        assert traced["what"] == "the output of model.embed_tokens in the forward"
        assert traced["rows"] == [f"{tmp_path / 'rows.json'}:{ROW}"]
    assert traced["micro_batch"] in (1, 2) and traced["micro_batches"] == 2
    assert len(traced["ranks"]) == (2 if strategy == "OfTp" else 1)  # both ranks of a layer see it
