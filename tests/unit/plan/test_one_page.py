"""A page of `paceline plan` agrees with itself: whatever it says twice, of strategy, batch, precision,
recomputation, offload, room, it says alike.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import swept

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.launch.preflight.forecast import forecast_of_plan
from paceline.launch.preflight.plan_job import planned
from paceline.plan.cost.memory.fits import room_of
from paceline.plan.cost.report import text
from paceline.plan.explain import explain
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_models

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3-70b", "qwen3-30b-a3b")
HARDWARE = ("1xA100", "8xA10", "8xH100", "16xH100", "64xH100", "4xV100")
OFFLOAD = {
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
}
JOBS: dict[str, dict[str, Any]] = {
    "auto": {},
    "auto, small": {
        "training": {
            "per_device_train_batch_size": 1,
            "gradient_checkpointing": True,
            "gradient_accumulation_steps": 4,
        }
    },
    "auto, lora": {"lora": {"r": 8}},
    "auto, qlora": {"lora": {"r": 8, "quantization_bit": 4}, "training": {"per_device_train_batch_size": 2}},
    "ddp": {"training": {"distributed_strategy": "ddp", "per_device_train_batch_size": 2}},
    "zero1": {"training": {"distributed_strategy": "zero1", "per_device_train_batch_size": 1}},
    "zero3": {"training": {"distributed_strategy": "zero3", "gradient_accumulation_steps": 3}},
    "file": {"training": {"deepspeed": {"zero_optimization": {"stage": 2}}}},
    "offload": {
        "training": {"deepspeed": OFFLOAD, "gradient_checkpointing": True, "per_device_train_batch_size": 1}
    },
    "fsdp": {
        "training": {"fsdp": "full_shard", "per_device_train_batch_size": 1, "gradient_checkpointing": True}
    },
    "fsdp offload": {"training": {"fsdp": "full_shard offload", "per_device_train_batch_size": 1}},
    "tp": {"training": {"parallelism": {"tp_size": 2}, "per_device_train_batch_size": 1}},
    "pp": {
        "training": {
            "parallelism": {"pp_size": 2},
            "gradient_accumulation_steps": 8,
            "per_device_train_batch_size": 1,
        }
    },
    "dpo": {
        "training": {"algorithm": "dpo", "per_device_train_batch_size": 2, "gradient_checkpointing": True}
    },
    "fastest": {"training": {"distributed_strategy": "fastest"}},
}
ROW = re.compile(r"^= (\S+(?: \+ \S+)*)\s+(.*?)\s+(\d+)×(\d+)(r?)\s+([\d.]+)\s+([\d.]+)", re.M)


def page(folder: Path, model: str, job: dict[str, Any], hardware: str) -> Any:
    """(plan, forecast, its text); None where the job is refused on this hardware."""
    precision = {} if hardware != "4xV100" else {"mixed_precision": "fp16"}
    path = folder / "c.yaml"
    whole = {
        "model": {"config": dict(known_models()[model].config), "tokenizer": str(folder)},
        "data": {"train": str(folder / "rows.jsonl"), "max_length": 1024},
        **job,
        "training": {"output_dir": str(folder / "out"), **precision, **job.get("training", {})},
    }
    path.write_text(yaml.safe_dump(whole))
    cluster = cluster_of(hardware)
    try:
        plan, _ = planned(load_config(str(path)), cluster=cluster)
    except ConfigError:
        return None
    forecast = forecast_of_plan(plan, cluster)
    return plan, forecast, cluster, explain(plan) + "\n" + (text(forecast) if forecast else "")


@pytest.mark.parametrize(
    ("hardware", "every"),
    [
        ("8xA10", False),
        *(pytest.param(h, False, marks=pytest.mark.slow) for h in ("8xH100", "16xH100")),
        *(pytest.param(h, True, marks=pytest.mark.slow) for h in HARDWARE),
    ],
)
def test_what_is_said_twice_is_said_alike(hardware: str, every: bool, tmp_path: Path) -> None:
    """``every`` model with every job; else each job with one of the models, another on each machine."""
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n' * 4)
    seen = 0
    turn = HARDWARE.index(hardware)
    for place, (model, (name, job)) in enumerate(product(MODELS, JOBS.items())):
        if not every and (place % len(JOBS) + turn) % len(MODELS) != place // len(JOBS):
            continue
        found = page(tmp_path, model, job, hardware)
        if found is None:
            continue
        seen += 1
        plan, forecast, cluster, told = found
        case = f"{model}, {name}, {hardware}"
        decisions = {d.subject: d for d in plan.decisions}
        chosen = decisions["training.distributed_strategy"]
        assert (chosen.choice, chosen.reason) == (plan.strategy, plan.strategy_reason), case
        assert f" with {plan.strategy} in {plan.world_size} process" in told.splitlines()[0], case
        assert f"{plan.batch.global_batch} rows per step, {plan.precision.compute}" in told.splitlines()[0], (
            case
        )
        assert decisions["batch"].choice == str(plan.batch), case
        assert decisions["training.mixed_precision"].choice == plan.precision.compute, case
        assert ("training.gradient_checkpointing" in decisions) == plan.recompute, case
        by_size = re.findall(r"auto: [\d.]+[MB] parameters", " ".join(told.split()))
        assert len(by_size) <= 1 and not re.search(r"^auto:", told, re.M), case
        for other in {"ddp", "zero2", "zero3", "fsdp"} - {plan.strategy}:
            assert f"{other} fits: " not in plan.strategy_reason, case
        if forecast is None or forecast.own is None:
            continue
        own = forecast.own
        assert forecast.spec.rows == plan.batch.global_batch, case
        assert f"{plan.batch.global_batch} rows of {plan.seq_len} tokens per step" in told, case
        row = ROW.search(told)
        assert row is not None, case
        assert row.group(1) in (plan.strategy, "single"), case
        assert (int(row.group(3)), int(row.group(4))) == (
            plan.batch.micro_batch,
            plan.batch.accumulation,
        ), case
        assert bool(row.group(5)) == plan.recompute, case
        moved = plan.engine.places[0] != "none"
        assert (own.work.offload != "none") == bool(moved), case
        fits = re.search(
            rf"(?:{plan.strategy}|full_shard\)|shard_grad_op\)) fits: (\d+) GiB of (\d+)$",
            plan.strategy_reason,
        )
        if fits:
            assert int(fits.group(1)) == round(own.bytes / 2**30) and own.safe, case
            assert "no: " not in row.string[row.start() : row.string.index("\n", row.start())], case
        assert "cannot start" not in own.binding, case
        room = room_of(plan, cluster.hardware())
        if room is not None and room.states_card is not None:
            assert room.states_card <= cluster.machine.memory and room.start_card <= cluster.machine.memory, (
                case
            )
    assert seen >= (25 if every and hardware != "1xA100" else 5)


TRIPLES = [
    {"train_batch_size": total, **micro, **steps}
    for total, micro, steps in product(
        (8, 10, 16, "auto"),
        ({}, {"train_micro_batch_size_per_gpu": 4}, {"train_micro_batch_size_per_gpu": "auto"}),
        ({}, {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": "auto"}),
    )
]


@pytest.mark.parametrize(
    "given", swept(TRIPLES, 4, 1), ids=lambda given: json.dumps(given).replace("train_", "")
)
def test_of_a_file_s_batch_everything_says_what_runs(
    given: dict[str, Any], tmp_path: Path, tokenizer_dir: Path
) -> None:
    """The note at the file, the rule's warning and the plan's decisions: one of them saying that the total
    stays, another that it does not, is a lie.
    """
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({**given, "zero_optimization": {"stage": 2}}))
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n' * 64)
    path = tmp_path / "c.yaml"
    model = {"config": dict(known_models()["gpt2"].config), "tokenizer": str(tokenizer_dir)}
    values = {
        "model": model,
        "data": {"train": str(tmp_path / "rows.jsonl"), "max_length": 64},
        "launch": {"nproc": 2},
        "training": {"use_cpu": True, "output_dir": str(tmp_path / "o"), "deepspeed": str(file)},
    }
    path.write_text(yaml.safe_dump(values))
    loaded = load_config(str(path))
    plan, warnings = planned(loaded)
    runs, total = plan.batch.global_batch, given["train_batch_size"]
    said = [f"{d.what} {d.hint}" for d in (*loaded.notes, *warnings) if "batch" in d.what]
    said += [f"{d.choice} {d.reason}" for d in plan.decisions if "batch" in d.subject]
    assert f"{runs} rows per step" in str(plan.batch)
    for sentence in said:
        for claim in (r"(\d+) is what runs", r"(\d+) stays", r"= (\d+)$", r"(\d+) rows per step ="):
            for number in re.findall(claim, sentence):
                assert int(number) == runs, sentence
    if isinstance(total, int) and total != runs:
        assert any(str(total) in s and re.search(r"not taken|does not|is not|not evenly", s) for s in said), (
            said
        )
