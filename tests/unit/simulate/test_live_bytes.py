"""What Paceline itself allocates: a meter of live tensors beside the closed form, for whole micro-batches.

States are exact (``test_simulation``); here they are summed with all that moves, at the peak. Three layouts
always, the others behind ``full``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.config.schema import Config
from paceline.plan.cost.from_plan import planned_candidate, search_spec_of
from paceline.plan.cost.memory.peak import chunk_of
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.simulate.counting import LiveBytes
from paceline.simulate.run import simulate

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
TIED = {**LLAMA, "tie_word_embeddings": True}
QWEN = {**LLAMA, "model_type": "qwen2"}
AGAIN = {"gradient_checkpointing": True}
LORA = {"lora": {"r": 16, "target_modules": "all-linear"}}
TWO = {"per_device_train_batch_size": 2}
MANY = {"per_device_train_batch_size": 16}
#: The plan's share that it may be off.
APART = 0.02
ALWAYS = [
    ("8xH100", "fsdp", LLAMA, {**TWO, **AGAIN}),
    ("H100", "single", LLAMA, MANY),
]
#: A window of one micro-batch, in which gradients and activations hardly meet.
ONE = {"gradient_accumulation_steps": 1}
BIG = {**TIED, "vocab_size": 128000}
ALWAYS += [("H100", "single", BIG, {**TWO, **AGAIN, **ONE})]
FULL = [
    ("H100", "single", LLAMA, TWO),
    ("8xH100", "fsdp", LLAMA, {**TWO, **LORA}),
    ("H100", "single", LLAMA, {**TWO, **ONE}),
    ("H100", "single", LLAMA, {**MANY, **ONE}),
    ("H100", "single", LLAMA, {**TWO, **AGAIN, **ONE}),
    ("H100", "single", LLAMA, {**MANY, **AGAIN, **ONE}),
    ("H100", "single", LLAMA, {**TWO, **LORA, **ONE}),
    ("H100", "single", LLAMA, {**TWO, "mixed_precision": "no", **ONE}),
    ("8xH100", "fsdp", LLAMA, {**TWO, **ONE}),
    ("8xH100", "fsdp", LLAMA, {**MANY, **ONE}),
    ("2xH100", "fsdp", LLAMA, {**TWO, **AGAIN, **ONE}),
    ("H100", "single", LLAMA, {**TWO, **AGAIN}),
    ("H100", "single", LLAMA, {**TWO, **LORA}),
    ("H100", "single", LLAMA, {**TWO, **LORA, **AGAIN}),
    ("H100", "single", LLAMA, {**TWO, "mixed_precision": "no"}),
    ("H100", "single", LLAMA, {**TWO, "mixed_precision": "no", **AGAIN}),
    ("H100", "single", LLAMA, {**MANY, **AGAIN}),
    ("H100", "single", LLAMA, {**MANY, **LORA}),
    ("H100", "single", LLAMA, {**MANY, "mixed_precision": "no"}),
    ("4090", "single", LLAMA, TWO),
    ("H100", "single", TIED, TWO),
    ("H100", "single", QWEN, TWO),
    ("8xH100", "fsdp", LLAMA, TWO),
    ("8xH100", "fsdp", LLAMA, MANY),
    ("8xH100", "fsdp", LLAMA, {**TWO, **LORA, **AGAIN}),
    ("8xH100", "fsdp", LLAMA, {**TWO, "fsdp": "shard_grad_op"}),
    ("8xH100", "fsdp", LLAMA, {**TWO, "fsdp": "shard_grad_op", **AGAIN}),
    ("16xH100", "fsdp", LLAMA, {**TWO, "fsdp": "hybrid_shard"}),
    ("16xH100", "fsdp", LLAMA, {**TWO, "fsdp": "hybrid_shard_zero2"}),
    ("64xH100", "fsdp", LLAMA, TWO),
    ("8xH100", "fsdp", QWEN, {**TWO, **AGAIN}),
]


def apart(hardware: str, strategy: str, config: dict[str, Any], training: dict[str, Any]) -> float:
    """Closed form / meter - 1, of all live tensors at the peak."""
    values = dict(training)
    lora = values.pop("lora", None)
    written = {
        "model": {"config": config, "tokenizer": "none"},
        "data": {"train": "none.jsonl", "max_length": 2048},
        "training": {"distributed_strategy": strategy, "gradient_accumulation_steps": 3, **values},
        **({"lora": lora} if lora else {}),
    }
    cluster = cluster_of(hardware)
    plan = make_plan(
        Job(
            Config.model_validate(written),
            cluster.hardware(),
            world_size=cluster.cards,
            num_nodes=cluster.nodes,
            launcher="torchrun",
            run_dir="none",
        )
    )
    spec = search_spec_of(plan, cluster)
    candidate = planned_candidate(plan, spec) if spec else None
    assert candidate is not None
    peak = candidate.peak
    measured = simulate(plan, config, chunk_of(candidate.work))
    return float((peak.total - peak.fragments - peak.overhead) / measured["peak"] - 1)  # type: ignore[operator]


@pytest.mark.parametrize(("hardware", "strategy", "config", "training"), ALWAYS)
def test_the_plan_counts_what_lives_at_the_peak(
    hardware: str, strategy: str, config: dict[str, Any], training: dict[str, Any]
) -> None:
    assert abs(apart(hardware, strategy, config, training)) <= APART


@pytest.mark.full
@pytest.mark.parametrize(("hardware", "strategy", "config", "training"), FULL)
def test_so_do_further_layouts(
    hardware: str, strategy: str, config: dict[str, Any], training: dict[str, Any]
) -> None:
    # a recomputed fp32 layer counts as if all of it lived beside the gradients of its MLP
    more = 0.02 if training.get("mixed_precision") == "no" and training.get("gradient_checkpointing") else 0.0
    assert -APART <= apart(hardware, strategy, config, training) <= APART + more


def test_the_meter_counts_each_storage_once_and_forgets_the_dead() -> None:
    weight = torch.zeros(1000)
    with LiveBytes([weight, weight.view(10, 100)]) as live:
        assert live.before == 4000
        first = weight + 1
        view = first[:10]
        assert live.peak == 8000
        del first, view
        _ = weight * 2
    assert live.peak == 8000, "the first sum was freed"
