"""Where each rank holds a part of the weights the plan says how answers are written: whole where there is
room, else together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.config.schema import Config
from paceline.plan.algorithms.rollout import decoding_decision
from paceline.plan.cost.from_plan import predicted_plan
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_models
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.training.rollout.weight_probe import GREEDY, TEXT


def plan_of(model: str, cards: str = "8xH100", **training: object) -> Plan:
    rollout = {"rewards": "length", "max_completion_length": 512, **training.pop("rollout", {})}  # type: ignore[dict-item]
    config = Config.model_validate(
        {
            "model": {"config": known_models()[model].config, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 1024},
            "training": {
                "algorithm": "grpo",
                "mixed_precision": "bf16",
                "distributed_strategy": "zero3",
                "rollout": rollout,
                **training,
            },
        }
    )
    cluster = cluster_of(cards)
    return make_plan(
        Job(
            config,
            cluster.hardware(),
            world_size=cluster.cards,
            num_nodes=cluster.cards // 8,
            launcher="torchrun",
            run_dir="none",
        )
    )


# ZeRO-3 starts with the whole fp32 model on each card: 13 B parameters are the largest of the list that a
# card takes so.
LARGE = {"zero3": "llama-2-13b", "fsdp": "llama-3-70b"}
WEIGHTS = {"zero3": "24.24", "fsdp": "131.42"}  # 13.02e9 and 70.55e9 × 2 bytes


def said(plan: Plan) -> tuple[str, str]:
    (found,) = [d for d in plan.decisions if d.subject == "answers are written"]
    return found.choice, found.reason


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_8b_is_whole_on_a_card_and_70b_is_not(strategy: str) -> None:
    small = plan_of("llama-3-8b", distributed_strategy=strategy)
    assert (
        "gather_for_generation" not in small.engine.to_json()
        and said(small)[0] == "the complete model on every rank"
    )
    large = plan_of(LARGE[strategy], "128xH100", distributed_strategy=strategy)
    assert large.engine.gather_for_generation is False and "together" in said(large)[0]
    assert f"weights {WEIGHTS[strategy]} GiB" in said(large)[1]


def test_a_cache_counts_too_and_so_does_the_users_wish() -> None:
    # 2 · 32 · 8 · 128 · 1024 · 512 · 2 bytes: 64 GiB
    many = plan_of("llama-3-8b", rollout={"generation_rows": 512})
    assert "512 answers 64.00 GiB" in said(many)[1] and many.engine.gather_for_generation is False
    for wish in (True, False):
        asked = plan_of("llama-3-8b", rollout={"gather_for_generation": wish})
        assert asked.engine.gather_for_generation is wish
        assert f"gather_for_generation: {str(wish).lower()}" in said(asked)[1]


def test_nothing_is_said_where_weights_are_whole_or_a_server_writes() -> None:
    whole = plan_of("llama-3.2-1b", distributed_strategy="zero2")
    assert "gather_for_generation" not in whole.engine.to_json()
    served = plan_of("llama-3-8b", "128xH100", rollout={"server": {"url": "http://127.0.0.1:8000"}})
    assert served.engine.gather_for_generation is False  # the texts that prove its weights, layer by layer
    for plan in (whole, served):
        assert not [d for d in plan.decisions if d.subject == "answers are written"]


def decoding(plan: Plan) -> tuple[str, str] | None:
    found = [(d.choice, d.reason) for d in plan.decisions if d.subject == "decoding"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("ddp", ""),
        ("zero_redundancy", ""),
        ("zero1", "deepspeed takes part in every layer's forward; "),
        ("fsdp", "fsdp takes part in every layer's forward; "),
    ],
)
def test_the_plan_says_whether_a_step_of_decoding_is_captured(strategy: str, reason: str) -> None:
    found = decoding(plan_of("qwen2.5-0.5b", distributed_strategy=strategy))
    assert found is not None
    assert found[0] == ("kernel by kernel" if reason else "a step is one captured graph")
    assert found[1].startswith(reason + "keys and values in fixed buffers")


def test_nothing_is_captured_where_the_host_takes_part() -> None:
    engine = {"gather_for_generation": False}
    together = decoding(plan_of("llama-3-8b", distributed_strategy="fsdp", rollout=engine))
    assert together == ("kernel by kernel", "every forward gathers the layers of all ranks")
    served = {"server": {"url": "http://127.0.0.1:1"}}
    assert decoding(plan_of("qwen2.5-0.5b", distributed_strategy="ddp", rollout=served)) is None


def test_the_plan_says_that_states_are_decoded_with_a_growing_cache() -> None:
    plan = plan_of("qwen2.5-0.5b", distributed_strategy="ddp")
    assert plan.shape is not None
    found = decoding_decision(replace(plan, shape=replace(plan.shape, carries=True)))
    assert found is not None and found.choice == "kernel by kernel"
    assert "a state" in found.reason and "fixed buffers" not in found.reason


@pytest.mark.parametrize(("answers", "tokens"), [(16, 512), pytest.param(1, 896, marks=pytest.mark.full)])
def test_the_probe_of_a_server_is_a_percent_of_a_step_of_7b(answers: int, tokens: int) -> None:
    """By the plan's numbers, whose tokens take as long as all weights are read. The server reads its text
    before a sync; after it, it writes four tokens and scores the text. The model computes both at once, in
    less time than its weights take.
    """
    cluster = cluster_of("8xH100")
    options = {"server": {"url": "http://127.0.0.1:1"}, "max_completion_length": tokens}
    plan = plan_of("qwen2.5-7b", rollout=options, per_device_train_batch_size=answers)
    candidate = predicted_plan(plan, cluster.hardware())
    assert candidate is not None
    speed = candidate.speed
    reading = 2 * 7.62e9 / (0.6 * 3.35e12)
    assert speed.generation > tokens * reading
    forward = speed.compute / 3 * (TEXT + GREEDY) / (speed.step_tokens / speed.world)
    assert forward < reading
    assert (1 + GREEDY + 1 + 1) * reading < 0.01 * speed.step
