"""Scaling a model down, the configs of both sides, and the verdict over two compared runs."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shrink import shrunk
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.verify.sides import TOLERANCES, gradient_checks, reference_for, runs_to_compare
from paceline.verify.verdict import judge, judge_probe

LARGE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 320,
    "max_position_embeddings": 8192,
    "attention_dropout": 0.1,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "gpt2", "gpt_neox"]
)
def test_a_small_sibling_is_built_by_transformers(family: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    full = AutoConfig.for_model(family)
    small = {
        k: v
        for k, v in shrunk(full.to_dict(), layers=2, kv_heads=4).items()
        if k not in ("architectures", "transformers_version", "_name_or_path")
    }
    config = AutoConfig.for_model(small.pop("model_type"), **small)
    with torch.device("meta"):
        model = auto.from_config(config)
    assert type(model) is auto._model_mapping[type(full)]
    assert config.num_hidden_layers == 2 and config.hidden_size <= 128 and config.num_attention_heads % 4 == 0
    assert config.vocab_size == full.vocab_size
    assert sum(p.numel() for p in model.parameters()) < 3 * full.vocab_size * config.hidden_size + 1e6


def test_what_makes_an_architecture_stays() -> None:
    small = shrunk(
        {**LARGE, "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "sliding_window": 4096},
        layers=2,
    )
    shape = shape_from_config(small)
    assert shape.tied and shape.kv_heads < shape.heads and shape.layers == 2
    assert small["attention_dropout"] == 0.0 and small["sliding_window"] == 32
    assert small["layer_types"] == ["sliding_attention", "full_attention"]
    assert (
        shrunk({**LARGE, "num_key_value_heads": 32})["num_key_value_heads"]
        == shrunk(LARGE)["num_attention_heads"]
    )


def plan_for(world_size: int, **training: Any) -> Any:
    config = Config.from_json(
        {
            "model": {"config": LARGE, "tokenizer": "somewhere"},
            "data": {"train": [{"path": "x.json"}], "max_length": 4096},
            "training": {
                "gradient_accumulation_steps": 2,
                "warmup_steps": 100,
                "mixed_precision": "no",
                **training,
            },
        }
    )
    hardware = Hardware(
        device="cpu",
        device_name="cpu",
        num_devices=0,
        memory_bytes=1 << 40,
        host_memory_bytes=1 << 40,
        bf16=True,
        fp16=False,
        cpu_count=8,
        num_nodes=1,
        peak_flops=None,
        torch_backends=("gloo",),
    )
    return make_plan(Job(config, hardware, world_size=world_size, launcher="spawn", run_dir="/r"))


def test_both_sides_train_the_same_rows() -> None:
    plan = plan_for(4, distributed_strategy="ddp")
    assert reference_for(plan) == "single"  # not with itself
    assert reference_for(plan_for(4, distributed_strategy="fsdp")) == "ddp"
    asked, reference = runs_to_compare(plan, LARGE, steps=3, against="single", folder="/v")
    ours, theirs = asked.config["training"], reference.config["training"]
    rows = [
        t["per_device_train_batch_size"] * t["gradient_accumulation_steps"] * n
        for t, n in ((ours, 4), (theirs, 1))
    ]
    assert rows[0] == rows[1] > 0 and (asked.nproc, reference.nproc) == (4, 1)
    assert ours["distributed_strategy"] == "ddp" and theirs["distributed_strategy"] == "single"
    assert (
        ours["learning_rate"] == 1e-3
        and ours["warmup_steps"] == 0
        and asked.config["data"]["max_length"] == 128
    )
    for side in (asked, reference):  # what is written for the runs is a config
        assert Config.from_json(side.config).training.max_steps == 3
    cuts = gradient_checks(asked, "/v")
    assert {
        (
            c.config["training"]["per_device_train_batch_size"]
            * c.config["training"]["gradient_accumulation_steps"]
        )
        for c in cuts
    } == {8}


def step(number: int, loss: float, other: float, gap: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "step": number,
        "loss": [loss, other],
        "grad_norm": [1.0, 1.0],
        "tensors": {"name": "w", "relative": gap, "count": 1},
        **more,
    }


def test_the_verdict_names_the_first_step_and_the_parameter() -> None:
    tolerance = TOLERANCES["float32"]
    good = {"steps": [step(1, 5.0, 5.0), step(2, 4.0, 4.0 + 1e-7)], "missing": []}
    assert judge(good, tolerance).agrees and "the runs agree" in judge(good, tolerance).text
    cases = {
        "after step 2 w differs": [step(1, 5.0, 5.0), step(2, 4.0, 4.0, 0.5), step(3, 3.0, 2.0)],
        "at step 1 the loss differs": [step(1, 5.0, 5.1)],
        "at step 1 they processed different samples": [step(1, 5.0, 5.0, samples_differ=True)],
        "at step 1 the gradient norm": [{**step(1, 5.0, 5.0), "grad_norm": [float("nan"), 1.0]}],
        "no step": [],
    }
    for words, steps in cases.items():
        verdict = judge({"steps": steps, "missing": []}, tolerance)
        assert not verdict.agrees and words in verdict.parted, verdict.parted
    assert "x" in judge({"steps": [step(1, 5.0, 5.0)], "missing": ["x"]}, tolerance).parted
    assert (
        "hardly changed"
        in judge({"steps": [step(1, 5.0, 5.0), step(2, 5.0, 5.0)], "missing": []}, tolerance).text
    )


def test_the_probe_compares_every_cut() -> None:
    tolerance = TOLERANCES["float64"]
    same, other = (
        {"steps": [step(1, 5.0, 5.0, 1e-14)], "missing": []},
        {"steps": [step(1, 5.0, 5.0, 1e-3)], "missing": []},
    )
    assert judge_probe({"4×2": same, "2×4": same}, tolerance, "8×1").agrees
    found = judge_probe({"4×2": same, "2×4": other}, tolerance, "8×1")
    assert not found.agrees and "2×4" in found.parted and "w" in found.parted
    assert not judge_probe({"4×2": {"steps": [], "missing": []}}, tolerance, "8×1").agrees
