"""What the plan says of the products of experts, by the card and the precision."""

from __future__ import annotations

import pytest

from paceline.config.schema import Config
from paceline.plan.features.experts import PRODUCT_AN_EXPERT, PRODUCTS
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

MIXTURE = {
    "model_type": "mixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("card", "precision", "choice"),
    [
        ("H100", "bf16", "one grouped product"),
        ("B200", "bf16", "one grouped product"),
        ("H100", "fp16", PRODUCT_AN_EXPERT),
        ("H100", "no", PRODUCT_AN_EXPERT),
        ("A100", "bf16", PRODUCT_AN_EXPERT),
        ("T4", "fp16", PRODUCT_AN_EXPERT),
    ],
)
@pytest.mark.parametrize("experts", [4, 0])
def test_the_plan_says_where_the_host_waits_for_the_experts_tokens(
    card: str, precision: str, choice: str, experts: int
) -> None:
    dense = {key: value for key, value in MIXTURE.items() if "expert" not in key}
    model = MIXTURE if experts else {**dense, "model_type": "llama"}
    config = Config.model_validate(
        {
            "model": {"config": model, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": {"distributed_strategy": "single", "mixed_precision": precision},
        }
    )
    hardware = cluster_of(f"1x{card}").hardware()
    plan = make_plan(Job(config, hardware, world_size=1, launcher="single", run_dir="none"))
    found = [d for d in plan.decisions if d.subject == PRODUCTS]
    assert [d.choice for d in found] == ([choice] if experts else [])
    assert all(("the host waits" in d.reason) == (choice == PRODUCT_AN_EXPERT) for d in found)
