"""Context parallelism as a layout that the search may take: its memory, its exchange, where it is offered,
and the plan that comes of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.plan.cost.coefficients import memory_coefficients, speed_coefficients
from paceline.plan.cost.memory.peak import peak_of
from paceline.plan.cost.search import Candidate, SearchSpec, search
from paceline.plan.cost.step_time import Group, latency, pass_time, speed_of
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_models, model_shape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.workload.step_spec import AdapterSize, StepSpec
from paceline.rules.planning import make_plan

C, S = memory_coefficients(), speed_coefficients()
LONG = 131072


def work(**changed: object) -> StepSpec:
    machine = cluster_of("8xH100").machine
    base = StepSpec(
        shape=model_shape("llama-3-8b"), machine=machine, seq_len=LONG, micro_batch=1, zero=3, kernels="fused"
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def layouts(**changed: object) -> list[Candidate]:
    ask = replace(SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"), LONG, rows=8), **changed)  # type: ignore[arg-type]
    return [c for c in search(ask) if c.work.cp > 1]


def test_a_rank_keeps_its_share_of_the_row_and_the_output_twice() -> None:
    tokens, h, q, kv, f = LONG // 4, 4096, 4096, 1024, 14336
    peak = peak_of(work(cp=4, dp=2), C, 0)
    assert peak.attention == pytest.approx(32 * tokens * (4 * h + 4 * (q + kv) + 2 * q))
    flowing = 2 * tokens * (4 * f + h)  # gradients of the layer that the backward is in
    assert peak.mlp == pytest.approx(32 * tokens * (4 * h + 4 * f) + flowing)
    assert peak.parameters == pytest.approx(2 * 8030261248 / 8), "states are shared by the ranks of a row too"


def test_keys_are_repeated_where_there_are_fewer_than_ranks() -> None:
    assert [work(cp=cp, dp=1).kv_width // 128 for cp in (1, 8, 16, 32)] == [8, 8, 16, 32]


def test_four_tensors_a_layer_go_all_to_all_in_every_pass() -> None:
    layout = work(cp=4, dp=2, accumulation=3)
    group = Group(4, 1)
    count = 2.0 * LONG / 4 * (2 * 4096 + 2 * 1024)
    each = 3 * latency(group, layout.machine, S) + pass_time(group, count, layout.machine, S)
    assert speed_of(layout, S).context_parallel == pytest.approx(3 * 32 * 2 * each)
    assert speed_of(replace(layout, recompute="full"), S).context_parallel == pytest.approx(3 * 32 * 3 * each)
    assert speed_of(work(dp=8), S).context_parallel == 0


def test_the_arithmetic_of_a_row_is_shared_out() -> None:
    whole, shared = speed_of(work(dp=8), S), speed_of(work(cp=8), S)
    assert shared.step_tokens * 8 == whole.step_tokens
    assert shared.compute == pytest.approx(whole.compute / 8, rel=0.05)


def test_it_is_offered_inside_a_node_where_heads_divide() -> None:
    found = layouts()
    assert {c.work.cp for c in found} == {2, 4, 8} and {c.strategy for c in found} == {"fsdp + cp"}
    for c in found:
        assert c.mesh.size == 8 and c.mesh.cp == c.work.cp and c.work.sharers == 8
        assert c.work.dp * c.work.micro_batch * c.work.accumulation == 8, "the rows of a step stay"
    assert {c.work.cp for c in layouts(shape=replace(model_shape("llama-3-8b"), heads=28))} == {2, 4}
    assert {c.work.cp for c in layouts(rows=1)} == {8}, "one row for all"


def test_it_is_not_offered_where_a_row_may_not_be_cut() -> None:
    assert layouts(adapter=AdapterSize(1_000_000)) == []
    assert all(layouts(algorithm=name) == [] for name in ("dpo", "reward", "ppo", "grpo"))
    assert layouts(shape=replace(model_shape("llama-3-8b"), model_type="gpt2")) == []


def plan_of(max_length: int, **model: object) -> Plan:
    config = Config.model_validate(
        {
            "model": {
                "config": {**known_models()["llama-3-8b"].config, "max_position_embeddings": 1 << 20},
                "tokenizer": "none",
                **model,
            },
            "data": {"train": "none.jsonl", "max_length": max_length},
            "training": {"distributed_strategy": "fastest", "per_device_train_batch_size": 1},
        }
    )
    cluster = cluster_of("8xH100")
    return make_plan(Job(config, cluster.hardware(), world_size=8, launcher="torchrun", run_dir="none"))


def test_a_row_that_is_too_long_for_one_card_is_planned_over_several() -> None:
    plan = plan_of(4 * LONG)
    assert plan.strategy == "fsdp" and plan.mesh.cp > 1 and plan.mesh.size == 8
    assert plan.batch.global_batch == 8 and plan.config.training.parallelism.cp_size == plan.mesh.cp
    assert plan.engine.cp_method == "ulysses"


def test_attention_that_cannot_be_cut_is_passed_over() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(4 * LONG, attn_implementation="sdpa")
    assert "fsdp + cp" in caught.value.diagnostics[0].found
