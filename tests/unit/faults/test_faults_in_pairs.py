"""Two faults that have nothing to do with each other are told in one answer, wherever each is found."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
from fault_jobs import Job

from paceline.core.errors import ConfigError
from paceline.launch.preflight import child_checks
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.preflight.plan_job import planned

NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}
#: What only a plan finds is not told beside a value that decides which strategy is planned.
_STAGE: dict[str, Any] = {"training.deepspeed": {"zero_optimization": {"stage": 7}}, "launch.nproc": 2}
_OF_THE_PLAN = {
    *("plan.balance_loss", "strategy.compile", "strategy.deepspeed_fp16", "model.attention_cpu"),
    *("data.max_pos", "eval.dataset", "prec.fp8", "prec.full_eval"),
}
# settings → code: found while loading, by a rule, by one that knows the machine or the shape, or by the plan.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"training.seed": 2**70}, "config.type"),
    ({"training.ddp_timeout": 10**12}, "config.value"),
    ({"lora.modules_to_save": "a\0b"}, "config.type"),
    ({"training.deepspeed": NVME, "launch.nproc": 2}, "zero.nvme_path"),
    (_STAGE, "config.type"),
    ({"training.torch_compile": True, "training.distributed_strategy": "zero3"}, "strategy.compile"),
    (
        {"training.mixed_precision": "fp16", "training.distributed_strategy": "zero3"},
        "strategy.deepspeed_fp16",
    ),
    ({"model.attn_implementation": "flash_attention_2"}, "model.attention_cpu"),
    ({"training.ddp_backend": "nccl", "launch.nproc": 2}, "back.nccl_cpu"),
    ({"training.eval_strategy": "steps"}, "eval.dataset"),
    ({"data.max_length": 4096}, "data.max_pos"),
    ({"training.report_to": "comet_ml"}, "train.report_to"),
    ({"training.fp8": True}, "prec.fp8"),
    ({"training.optim_args": "nosuch=3"}, "train.optim_args"),
    ({"training.router_aux_loss_coef": 0.1}, "plan.balance_loss"),
    ({"training.bf16_full_eval": True}, "prec.full_eval"),
]
# The precision that a fault sets is the other's question.
_ONE_KEY = {"strategy.deepspeed_fp16": {"prec.fp8", "prec.full_eval"}}


def _apart(one: tuple[dict[str, Any], str], other: tuple[dict[str, Any], str]) -> bool:
    same = one[0].keys() & other[0].keys()
    related = other[1] in _ONE_KEY.get(one[1], ()) or one[1] in _ONE_KEY.get(other[1], ())
    planned_too = _STAGE in (one[0], other[0]) and {one[1], other[1]} & _OF_THE_PLAN
    return all(one[0][key] == other[0][key] for key in same) and not related and not planned_too


PAIRS = [pair for pair in combinations(FAULTS, 2) if _apart(*pair)]
CHOSEN = Random(36).sample(PAIRS, 32)


def _codes(job: Job, settings: dict[str, Any]) -> list[str]:
    try:
        planned(load_to_start(job.yaml(settings), []))
    except ConfigError as error:
        return [f"{d.code} at {d.where}: {d.what}" for d in error.diagnostics]
    return []


@pytest.mark.parametrize(
    "pairs", [pytest.param(CHOSEN, id="some"), pytest.param(PAIRS, id="all", marks=pytest.mark.slow)]
)
def test_neither_of_two_faults_hides_the_other(
    job: Job, monkeypatch: pytest.MonkeyPatch, pairs: list[Any]
) -> None:
    monkeypatch.setattr(child_checks, "run_child", lambda job: ({}, ""))  # no processes: files are sound here
    wrong = []
    for (one, code), (other, further) in pairs:
        said = _codes(job, {**one, **other})
        found = {text.partition(" ")[0] for text in said}
        if not {code, further} <= found or len(said) > len(set(said)):
            wrong.append(f"{code} and {further}: {said}")
    assert wrong == []


def test_what_was_put_in_place_of_a_wrong_value_is_not_judged(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound job with one wrong value has one fault: the plan of the default says nothing."""
    monkeypatch.setattr(child_checks, "run_child", lambda job: ({}, ""))
    fsdp = {"training.distributed_strategy": "fsdp", "training.fsdp": "full_shard"}
    for settings, code in (
        ({**fsdp, "launch.nproc": "two"}, "config.type"),
        ({**fsdp, "launch.nproc": 2, "training.parallelism": {"tp_size": "two"}}, "config.type"),
        ({"training.deepspeed": NVME, "launch.nproc": 2}, "zero.nvme_path"),
        ({"data.max_length": "long", "launch.nproc": 2}, "config.type"),
        ({"training.eval_strategy": "steps", "data.eval": 3}, "config.type"),
        ({"training.per_device_train_batch_size": "x", "training.eval_steps": 3}, "config.type"),
    ):
        said = _codes(job, settings)
        assert [text.partition(" ")[0] for text in said] == [code], said
