"""Predictions: terms by hand, what must grow and what must shrink, and the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.plan.cost.advice import advice
from paceline.plan.cost.coefficients import memory_coefficients, speed_coefficients, spread
from paceline.plan.cost.memory.peak import in_flight, peak_of, worst_peak
from paceline.plan.cost.memory.terms import Peak
from paceline.plan.cost.report import forecast, text
from paceline.plan.cost.search import (
    TIE,
    Candidate,
    SearchSpec,
    best_of_each,
    fastest,
    host_bytes,
    ranked,
    search,
)
from paceline.plan.cost.step_time import (
    GRAPH_LAYER,
    Group,
    bandwidth,
    latency,
    offload_seconds,
    pass_time,
    speed_of,
    token_flops,
)
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import model_shape
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import OptimizerSpec
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.local_tensors import LocalTensor, Orthogonal, orthogonal
from paceline.plan.workload.step_spec import AdapterSize, RolloutSpec, StepSpec, Storage, why_not_run

C = memory_coefficients()
S = speed_coefficients()


def work(**changed: object) -> StepSpec:
    base = StepSpec(
        shape=model_shape("llama-3-8b"),
        machine=cluster_of("8xH100").machine,
        seq_len=4096,
        micro_batch=1,
        dp=8,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimizer"),
    [(0, 2, 4, 12), (1, 2, 4, 12 / 8), (2, 2, 4 / 8, 12 / 8), (3, 2 / 8, 4 / 8, 12 / 8)],
)
def test_states_are_shared_out_as_each_zero_stage_says(
    zero: int, weights: float, gradients: float, optimizer: float
) -> None:
    peak, count = peak_of(work(zero=zero), C, 0), 8030261248
    assert peak.parameters == pytest.approx(weights * count)
    assert peak.gradients == pytest.approx(gradients * count)
    assert peak.optimizer == pytest.approx(optimizer * count)


def test_a_part_of_the_optimizer_states_may_stay_on_the_card() -> None:
    """ZeRO-Offload++'s ratio: the rest of the states is on the card, and the host and its link have less."""
    whole, part = (work(zero=3, offload="optimizer", offloaded=ratio) for ratio in (1.0, 0.25))
    assert peak_of(whole, C, 0).optimizer == 0.0
    assert peak_of(part, C, 0).optimizer == pytest.approx(0.75 * peak_of(work(zero=3), C, 0).optimizer)
    assert host_bytes(part) == pytest.approx(0.25 * host_bytes(whole)) and offload_seconds(
        part
    ) < offload_seconds(whole)


def test_activations_of_one_layer_by_hand() -> None:
    """attention: norm·h + 4q + 4kv; feed-forward: norm·h + 2·4·f; logits: c·V; times tokens."""
    h, q, kv, f, tokens = 4096, 4096, 1024, 14336, 4096
    peak = peak_of(work(), C, 0)
    assert peak.attention == pytest.approx(32 * tokens * (C.norm * h + 4 * q + 4 * kv))
    assert peak.mlp == pytest.approx(32 * tokens * (C.norm * h + 2 * C.gated * f))
    assert peak.logits == pytest.approx(C.logits * tokens * 128256)
    # saved-tensor hooks on Transformers' Llama gave 49.2 s·b·h for f = 3.5 h and a quarter of KV heads
    assert (peak.attention + peak.mlp) / (32 * tokens * h) == pytest.approx(49.2, rel=0.01)


def test_recomputation_keeps_one_layer_and_the_inputs_of_all() -> None:
    plain, again = peak_of(work(), C, 0), peak_of(work(recompute="full"), C, 0)
    assert again.attention == again.mlp == 0
    assert again.checkpoints == pytest.approx(
        C.checkpoint * 2 * 4096 * 4096 * 32 + (plain.attention + plain.mlp) / 32
    )


def test_adapters_train_little_and_keep_the_base_packed() -> None:
    lora = AdapterSize(parameters=20_000_000)
    plain, packed = (
        peak_of(work(adapter=lora, dp=1), C, 0),
        peak_of(work(adapter=replace(lora, base_bytes=0.516), dp=1), C, 0),
    )
    assert plain.gradients == pytest.approx(4 * 20e6) and plain.optimizer == pytest.approx(12 * 20e6)
    linear = 8030261248 - 2 * 128256 * 4096
    assert plain.parameters - packed.parameters == pytest.approx(linear * (2 - 0.516))


def test_the_first_stage_holds_a_micro_batch_for_every_stage_and_the_last_the_logits() -> None:
    piped = work(pp=4, dp=2, accumulation=16)
    assert [in_flight(piped, place) for place in range(4)] == [4, 3, 2, 1]
    assert in_flight(replace(piped, accumulation=2), 0) == 2
    assert peak_of(piped, C, 0).logits == 0 < peak_of(piped, C, 3).logits
    place, worst = worst_peak(piped, C)
    assert worst.total == max(peak_of(piped, C, p).total for p in range(4)) and place in range(4)


def test_a_cut_by_cost_gives_every_layer_to_one_stage_and_counts_the_head() -> None:
    cut = work(pp=8, dp=1, cut_by_cost=True).stages
    assert sum(stage.layers for stage in cut) == 32 and sum(stage.head for stage in cut) == 1
    assert cut[0].layers > [stage.layers for stage in cut if stage.head][0]


def test_what_cannot_run_is_told() -> None:
    assert why_not_run(work(pp=64, dp=1, accumulation=64)) == "64 stages for 32 layers"
    assert why_not_run(work(pp=8, dp=1, accumulation=2)) == "2 micro-batches for 8 stages"
    assert why_not_run(work()) == ""


def test_flops_are_six_a_matmul_parameter_and_attention_beside() -> None:
    shape = model_shape("llama-3-8b")
    assert token_flops(work()) == 6 * shape.matmul_parameters + 12 * 32 * 4096 * 4096


def test_speed_goes_the_right_way() -> None:
    base = speed_of(work(zero=3), S)
    assert 0.2 < base.mfu < 0.7
    assert speed_of(work(zero=3, recompute="full"), S).step > base.step
    assert speed_of(work(pp=4, dp=2, accumulation=4), S).bubble > 0
    slow = replace(work().machine, outside=1e9, node=4)
    assert speed_of(work(zero=3, machine=slow), S).data_parallel > base.data_parallel
    long = speed_of(work(zero=3, accumulation=8), S)
    assert long.tokens_per_second_per_rank > base.tokens_per_second_per_rank, (
        "gradients are averaged once a window"
    )


def test_zero_three_gathers_in_every_micro_batch_and_zero_one_once() -> None:
    slow = replace(work().machine, inside=2e9)
    for zero, grows in ((1, False), (3, True)):
        one, eight = (
            speed_of(work(zero=zero, machine=slow, accumulation=n), S).data_parallel for n in (1, 8)
        )
        assert (eight > 4 * one) is grows


def test_fused_layers_of_another_program_save_less() -> None:
    """No fp32 copies of norms, and of the gate its halves and their product."""
    eager, fused = (peak_of(work(fused=each), C, 0) for each in (False, True))
    a_layer = 4096 * work().shape.layers
    assert eager.attention - fused.attention == a_layer * 4.0 * 4096
    assert eager.mlp - fused.mlp == a_layer * (4.0 * 4096 + 2.0 * 14336)


def test_gradients_travel_in_messages_that_each_wait() -> None:
    """On links so wide that only waiting is left: two passes in 400 MiB each, and half the model half as
    often.
    """
    far = replace(cluster_of("64xH100").machine, inside=1e18, outside=1e18)
    one, two = (work(machine=far, dp=64, tp=tp, sequence_parallel=False) for tp in (1, 2))
    waits = 2 * 4.0 * one.largest_stage / (S.message * 2**20) * latency(Group(64, 1), far, S)
    never_hidden = speed_of(one, replace(S, overlap=0.0)).data_parallel
    assert never_hidden == pytest.approx(waits, rel=1e-4)
    assert speed_of(two, replace(S, overlap=0.0)).data_parallel < never_hidden


def test_attention_has_no_weights_so_adapters_spare_none_of_it() -> None:
    """A row twice as long, half as many of them: only attention's FLOPs grow, by as much with an adapter."""
    grown = []
    for adapter in (None, AdapterSize(1)):
        short, long = (work(seq_len=n, micro_batch=2**17 // n, adapter=adapter) for n in (2**16, 2**17))
        grown.append(speed_of(long, S).compute - speed_of(short, S).compute)
    assert grown[0] == pytest.approx(grown[1], rel=1e-3)
    machine, shape = work().machine, work().shape
    forward = 2.0 * 2**17 * shape.heads * shape.head_dim * 2**16 * shape.layers
    assert grown[0] == pytest.approx(
        3.5 * forward / (machine.flops * machine.attention * S.attention), rel=1e-3
    )


def test_weights_that_are_sent_again_after_whole_gradients_cost_one_more_pass() -> None:
    """On a link so slow that nothing is hidden: two passes of the gradients, as DDP's, and one of the fp32
    weights.
    """
    slow = replace(cluster_of("8xH100").machine, inside=1e8)
    whole = speed_of(work(machine=slow), S).data_parallel
    sent = speed_of(work(zero=1, machine=slow, storage=Storage(sent=4.0)), S).data_parallel
    count = work().shape.num_parameters
    assert sent - whole == pytest.approx(pass_time(Group(8, 1), 4.0 * count, slow, S, S.message * 2**20))


def test_muon_counts_its_iterations_and_gathers() -> None:
    """A matrix of 6 × 4 and a stack of three of 2 × 5, by hand: products of m × n, n × m and m × m; and what
    a matrix that is cut costs beside one that is whole.
    """
    pieces = [
        LocalTensor("model.layers.0.mlp.up_proj.weight", (6, 4), True, True, 4),
        LocalTensor("model.layers.0.mlp.experts.gate_up_proj", (3, 2, 5), True, True, 4),
        LocalTensor("model.embed_tokens.weight", (9, 4), True, True, 4),
        LocalTensor("model.norm.weight", (4,), True, False, 4),
    ]
    found = orthogonal(pieces, OptimizerSpec("muon", args={"ns_dtype": "float32"}))

    def products(m: int, n: int) -> int:
        return 5 * 2 * (m * n * m + m * m * m + m * m * n)

    assert found == Orthogonal(1, 24.0, products(4, 6), 3 * products(2, 5), 4)
    assert orthogonal(pieces, OptimizerSpec()) is None
    matrices = Orthogonal(224, 7e9, 5e15)
    machine = work().machine
    rate = (machine.reached or 0.8 * machine.flops) * S.kernel

    def more(**changed: object) -> float:
        times = [speed_of(work(orthogonal=one, **changed), S).optimizer for one in (matrices, None)]
        return times[0] - times[1]

    assert more() == pytest.approx(5e15 / rate)
    assert more(zero=1, storage=Storage(sent=4.0)) == pytest.approx(5e15 / rate / 8)
    group = Group(8, 1)
    gathers = 223 * latency(group, machine, S) + pass_time(group, 2 * 7e9, machine, S)
    assert more(zero=3) == pytest.approx(5e15 / rate + gathers)


def test_a_captured_step_of_decoding_launches_no_kernels() -> None:
    """Kernel by kernel the launches of 24 small layers take longer than their weights are read in."""
    rollout = RolloutSpec(512, rows=1)
    small = {"algorithm": "grpo", "dp": 1, "shape": model_shape("qwen2.5-0.5b")}
    plain, captured = (
        speed_of(work(rollout=replace(rollout, captured=c), **small), S).generation for c in (False, True)
    )
    assert plain == pytest.approx(512 * 24 * S.launch * 1e-3 / 3)
    assert 512 * 24 * GRAPH_LAYER <= captured < plain / 4


def test_a_forward_over_the_rows_of_a_step_costs_a_third_of_its_products() -> None:
    """KTO: the reference's, and both models' on answers to other prompts; with an adapter the reference is
    the model itself, run once more without it.
    """
    for algorithm, adapter, forwards in (
        ("sft", None, 0),
        ("reward", None, 0),
        ("kto", None, 3),
        ("kto", AdapterSize(10**6), 3),
    ):
        found = speed_of(work(algorithm=algorithm, adapter=adapter), S)
        assert found.others == pytest.approx(found.compute * forwards / 3), algorithm


def test_a_larger_teacher_costs_as_much_more_as_it_is_larger() -> None:
    c, m = speed_coefficients("paceline"), memory_coefficients("paceline")
    equal, larger = work(algorithm="distillation"), work(algorithm="distillation", frozen_size=14.0)
    assert speed_of(larger, c).others == pytest.approx(14 * speed_of(equal, c).others)
    assert (
        peak_of(larger, m, 0).others == pytest.approx(14 * peak_of(equal, m, 0).others)
        and peak_of(equal, m, 0).others > 0
    )
    adapter = AdapterSize(1e6, 2.0)
    assert (
        work(algorithm="distillation", adapter=adapter).frozen_models == 1
        and work(algorithm="dpo", adapter=adapter).frozen_models == 0
    )


def test_a_group_over_nodes_is_as_fast_as_its_adapters() -> None:
    machine = cluster_of("64xH100").machine
    assert bandwidth(Group(8, 1), machine, S) == machine.inside * S.link_inside
    assert bandwidth(Group(64, 1), machine, S) < bandwidth(Group(16, 1), machine, S) < machine.inside
    assert bandwidth(Group(8, 8), machine, S) < bandwidth(Group(64, 1), machine, S) * 8
    assert pass_time(Group(1, 1), 1e9, machine, S) == 0.0


def test_the_search_finds_what_fits_and_says_what_binds_the_rest() -> None:
    found = search(SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100")))
    best = fastest(found)
    assert best is not None and best.safe and all(c.step * (1 + TIE) >= best.step for c in found if c.safe)
    rows = {c.strategy: c for c in best_of_each(found)}
    assert not rows["ddp"].fits and "of 79" in rows["ddp"].binding and "optimizer" in rows["ddp"].binding
    assert rows["fsdp"].safe and rows["fsdp"].fits and rows["fsdp"].binding == ""


def test_packed_adapters_are_searched_where_they_can_be_trained() -> None:
    ask = SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"), adapter=AdapterSize(1_000_000, 0.516))
    packed = {"ddp", "zero_redundancy", "zero1", "zero2", "fsdp", "fsdp + cpu"}
    assert {c.strategy for c in search(ask)} == packed


def test_rows_that_cannot_be_shared_out_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        search(
            SearchSpec(
                model_shape("llama-3-8b"), cluster_of("8xH100"), rows=7, adapter=AdapterSize(1_000_000)
            )
        )
    assert caught.value.diagnostics[0].hint == "8 or 16"


def test_a_ledger_corrects_memory_and_time() -> None:
    ask = SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"))
    plain, corrected = search(ask)[0], search(replace(ask, corrections=(1.5, 2.0)))[0]
    assert corrected.bytes == pytest.approx(1.5 * plain.bytes) and corrected.step == pytest.approx(
        2 * plain.step
    )


def test_spreads_are_around_one() -> None:
    for kind in ("memory", "speed", "low_precision"):
        low, high = spread(kind)
        assert 0.3 < low < 1.05 < high + 0.1 < 3


def test_full_precision_storage_is_what_it_says() -> None:
    assert peak_of(work(storage=Storage(4, 4, 8), zero=0), C, 0).optimizer == 8 * 8030261248


def test_rows_that_some_strategies_cannot_share_are_told_with_the_nearest() -> None:
    ask = SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"), rows=12)
    said = advice(ask, search(ask), fastest(search(ask)))
    assert any(
        "12 rows per step are not a multiple of 8 devices" in sentence and "8 or 16 rows" in sentence
        for sentence in said
    )
    assert SearchSpec(model_shape("llama-3-8b"), cluster_of("7xH100")).rows == 133, (
        "without being asked for, rows that all cards can share"
    )


def test_of_equal_speed_the_smaller_is_taken() -> None:
    found = search(SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH200")))
    best = ranked(found)[0]
    tied = [c for c in found if c.safe and c.step <= min(c.step for c in found if c.safe) * (1 + TIE)]
    assert len(tied) > 1 and best.bytes == min(c.bytes for c in tied)


def test_autotp_with_zero_one_beats_zero_three_on_a_very_slow_network_only_and_takes_more_memory() -> None:
    base = cluster_of("16xA100")

    def rows(outside: float) -> tuple[Candidate, Candidate]:
        slow = replace(base, machine=replace(base.machine, outside=outside))
        best = {c.strategy: c for c in best_of_each(search(SearchSpec(model_shape("llama-2-13b"), slow)))}
        return best["zero3"], best["autotp + zero1"]

    gathered, exchanged = rows(base.machine.outside)
    assert gathered.step < exchanged.step and gathered.bytes < exchanged.bytes
    gathered, exchanged = rows(1.25e9 / 8)
    assert (
        exchanged.step < 0.8 * gathered.step and gathered.speed.data_parallel > exchanged.speed.data_parallel
    )


def test_between_running_and_being_chosen_there_is_a_margin() -> None:
    rows = {c.strategy: c for c in search(SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100"), 4096))}
    whole = rows["fsdp"]
    spare = {
        share: replace(whole, memory_factor=share * whole.card / whole.peak.total)
        for share in (0.89, 0.92, 0.96)
    }
    assert [(c.fits, c.safe) for c in spare.values()] == [(True, True), (True, False), (False, False)]
    assert (
        "less than the safety margin" in spare[0.92].binding
        and "most of it" in spare[0.96].binding
        and not spare[0.89].binding
    )
    assert ranked(list(spare.values())) == [spare[0.89]]


def test_what_stays_gathered_at_the_ends_does_not_grow_with_the_layers() -> None:
    ends = replace(C, gathered_ends=10.0)
    for layout, more in ((work(tp=8, dp=1), 10 * 4096 * 4096), (work(), 0), (work(tp=2, pp=4, dp=1), 0)):
        assert peak_of(layout, ends, 0).gathered - peak_of(layout, C, 0).gathered == pytest.approx(more)


def test_a_cpu_has_no_driver_s_context() -> None:
    plain = replace(work().machine, context=False)
    assert peak_of(work(machine=plain), C, 0).overhead == 0 < peak_of(work(), C, 0).overhead


def test_the_layout_that_is_taken_is_the_one_in_the_table() -> None:
    told = forecast("llama-3-8b", SearchSpec(model_shape("llama-3-8b"), cluster_of("8xH100")))
    assert told.chosen is not None and any(c is told.chosen for c in told.rows)
    assert [line for line in text(told).splitlines() if line.startswith("* fsdp ")]


def test_the_answers_that_are_written_together_must_have_room() -> None:
    def peak(rows: int) -> Peak:
        rollout = RolloutSpec(256, rows=rows)
        return peak_of(
            work(algorithm="grpo", zero=3, shard=8, accumulation=64, recompute="full", rollout=rollout), C, 0
        )

    few, many = peak(2), peak(64)
    assert few == peak(1)  # the update takes more than the keys and values of two answers
    update = few.attention + few.mlp + few.checkpoints + few.logits + few.gathered
    cache = 2 * 2 * 32 * 8 * 128 * 4096 * 64  # bytes of 64 rows of Llama 3 8B: 32 GiB
    assert many.gathered - few.gathered == pytest.approx(cache - update)


def test_a_rollout_takes_the_length_of_its_answers_and_its_steps_share_it() -> None:
    def seconds(rollout: RolloutSpec | None) -> float:
        return speed_of(work(algorithm="grpo", rollout=rollout), S).generation

    assert seconds(RolloutSpec(2048)) == pytest.approx(8 * seconds(RolloutSpec(256)))
    assert seconds(RolloutSpec(256, windows=1, passes=4)) == pytest.approx(seconds(RolloutSpec(256)) / 4)
    assert seconds(RolloutSpec(256)) / 2 <= seconds(RolloutSpec(256, windows=2)) < seconds(RolloutSpec(256))
    assert seconds(None) == seconds(RolloutSpec(2048))  # half a row


def test_forwards_beside_a_step_are_those_that_are_run() -> None:
    """In units of the trained model's forward."""
    lora = AdapterSize(1_000_000, 2.0)
    assert work(algorithm="dpo").forwards_beside == work(algorithm="dpo", adapter=lora).forwards_beside == 1
    assert work(algorithm="dpo", frozen_size=0.5).forwards_beside == 0.5
    assert work(algorithm="dpo", adapter=lora, frozen_size=0.5).forwards_beside == 1  # the model itself
    assert work(algorithm="kto").forwards_beside == 3
    assert work(algorithm="kto", further_forwards=0).forwards_beside == 1
    assert work(algorithm="sft", adapter=lora).forwards_beside == 0


def test_generation_is_predicted_for_the_share_of_rows_that_is_generated() -> None:
    times = [
        speed_of(work(algorithm="distillation", rollout=RolloutSpec(128, share=share)), S).generation
        for share in (1.0, 0.5)
    ]
    assert 0 < times[1] == pytest.approx(times[0] / 2)


@pytest.mark.parametrize(
    ("config", "shards"),
    [
        ({"model_type": "llama", "vocab_size": 32000}, True),
        ({"model_type": "bloom", "n_layer": 30, "n_head": 32, "vocab_size": 250880}, False),  # padded rows
    ],
)
def test_sequence_parallelism_is_suggested_only_where_the_model_can_do_it(
    config: dict[str, Any], shards: bool
) -> None:
    shape = shape_from_config({"hidden_size": 4096, **config})
    found = [c for c in search(SearchSpec(shape, cluster_of("16xH100"), 2048)) if c.work.tp > 1]
    assert found
    for candidate in found:
        keys = strategy_spec(candidate.layout.strategy).settings(candidate.work, candidate.mesh)
        sizes = keys.get("parallelism")
        assert not isinstance(sizes, dict) or ("sequence_parallel" in sizes) is shards
        assert shards or not candidate.work.sequence_parallel
