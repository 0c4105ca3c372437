"""What a start and the states take of each card and of a node's memory: counted, said, refused; every
strategy says its own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.plan.cost.memory.fits import bytes_a_node, room_decisions, room_of
from paceline.plan.cost.search import SearchSpec, layouts, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.hardware.probe import Hardware, probe_hardware
from paceline.plan.model.files.safetensors_headers import with_stored
from paceline.plan.model.model_catalogue import known_models
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job, strategy_spec, strategy_specs
from paceline.plan.strategy_options import NO_OPTIONS, DeepSpeedOptions, FsdpOptions
from paceline.plan.workload.startup_memory import (
    ARRIVES,
    CARD,
    FIRST,
    HOST,
    INTERPRETER,
    PARTS,
    PEFT,
    ModelBytes,
    card_peak,
    host_peak,
    start_of,
)
from paceline.rules.planning import make_plan

GIB = 2**30
CPU = replace(
    probe_hardware({}, use_cpu=True), packages=None, host_memory_bytes=23 * GIB, memory_bytes=23 * GIB
)
OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


def plan_of(
    model: str, hardware: Hardware | str, ranks: int = 0, lora: dict[str, Any] | None = None, **training: Any
) -> Plan:
    cluster = cluster_of(hardware) if isinstance(hardware, str) else None
    config = Config.model_validate(
        {
            "model": {"config": known_models()[model].config, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 512},
            "training": {"mixed_precision": "bf16", **training},
            **({"lora": lora} if lora else {}),
        }
    )
    machine = cluster.hardware() if cluster else hardware
    assert isinstance(machine, Hardware)
    ranks, nodes = ranks or (cluster.cards if cluster else 1), cluster.nodes if cluster else 1
    return make_plan(
        Job(config, machine, world_size=ranks, num_nodes=nodes, launcher="torchrun", run_dir="none")
    )


def refusal(*arguments: Any, **training: Any) -> tuple[str, str, str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(*arguments, **training)
    first = caught.value.diagnostics[0]
    return first.code, first.found, first.hint


def test_every_strategy_and_every_family_of_the_search_says_how_it_starts() -> None:
    assert all(spec.start(NO_OPTIONS) is not None for spec in strategy_specs())
    for layout in layouts():
        sections = strategy_spec(layout.strategy).sections
        engine = (
            DeepSpeedOptions(zero_stage=layout.zero)
            if "deepspeed" in sections
            else FsdpOptions(meta_start=True)
        )
        assert layout.start is strategy_spec(layout.strategy).start(engine), layout.name
    assert strategy_spec("mine:Own").start(NO_OPTIONS) is None


def test_peaks_count_every_model_beside_those_that_are_there_already() -> None:
    roles = [ModelBytes(100.0, 10.0, 0.0), ModelBytes(100.0, 20.0, 0.0)]
    assert card_peak(CARD, roles) == 110 and card_peak(HOST, roles) == 10 + 20  # what stays there
    passing = [replace(role, largest=7.0) for role in roles]  # sent whole, beside the shards
    assert card_peak(FIRST, passing) == 37 and card_peak(CARD, passing) == 110
    assert (
        host_peak(HOST, roles, 4) == 400 + 4 * INTERPRETER
        and host_peak(FIRST, roles, 4) == 100 + 4 * INTERPRETER
    )
    shares = [ModelBytes(100.0, 0.0, 25.0)] * 2
    # the second beside the first's shares
    assert host_peak(FIRST, shares, 4) == 100 + 100 + 100 + 4 * INTERPRETER


@pytest.mark.parametrize(
    ("training", "lora", "code"),
    [
        ({"deepspeed": {"zero_optimization": {"stage": 0}}}, None, "plan.states_card"),
        ({"distributed_strategy": "ddp"}, None, "plan.states_card"),
    ],
)
def test_what_a_card_cannot_hold_at_the_start_is_refused_with_the_bytes(
    training: dict[str, Any], lora: dict[str, Any] | None, code: str
) -> None:
    """70.6 B parameters: 262.83 GiB in fp32."""
    found = refusal("llama-3-70b", "128xH100", lora=lora, **training)
    assert found[0] == code and "of 78.80 GiB of card" in found[1]
    assert code != "plan.start_card" or found[1].startswith("at least 262.83 GiB")
    assert "fits" in found[2] or "fsdp" in found[2]


def test_a_4_bit_base_is_packed_on_its_way_to_the_card() -> None:
    """70.6 B parameters on 80 GB: 37.7 GiB packed and with embeddings and adapters, and never more."""
    lora = {"r": 8, "quantization_bit": 4}
    plan = plan_of("llama-3-70b", "128xH100", lora=lora, distributed_strategy="ddp")
    room = room_of(plan, cluster_of("128xH100").hardware())
    assert room is not None and room.states_card is not None
    assert 37 * GIB < room.start_card < room.states_card < 40 * GIB


def test_what_zero_3_and_autotp_leave_to_a_card_is_planned() -> None:
    """70.6 B parameters: whole they would be 262.83 GiB in fp32. AutoTP with parameters on a drive is still
    that, as DeepSpeed partitions first.
    """
    cut = {"tensor_parallel": {"autotp_size": 8}}
    for section, model, least in (
        ({"zero_optimization": {"stage": 3}}, "llama-3-70b", 9.05),  # with two buffers of gradients
        ({"zero_optimization": OFFLOADED}, "llama-3-70b", 3.9),
        ({"zero_optimization": {"stage": 1}, **cut}, "qwen2.5-32b", 21.0),  # flattened
    ):
        room = room_of(plan_of(model, "128xH100", deepspeed=section), cluster_of("128xH100").hardware())
        assert room is not None and room.start_card / GIB == pytest.approx(least, abs=0.1)
    spec = strategy_spec("deepspeed")
    whole = DeepSpeedOptions(zero_stage=3, autotp_size=8, offload_param="nvme")
    assert spec.start(whole) is CARD
    assert spec.start(replace(whole, autotp_size=1)) is spec.start(replace(whole, offload_param="cpu"))


def test_what_starts_with_less_is_planned_and_says_what_it_takes() -> None:
    for training in ({"fsdp": "full_shard"}, {"parallelism": {"pp_size": 8}}):
        plan = plan_of("llama-3-70b", "64xH100", gradient_accumulation_steps=16, **training)
        (start,) = [d for d in plan.decisions if d.subject == "start"]
        assert "unknown here" in start.reason
        # embedding or head in fp32 beside a rank's shard
        card = "8.02" if "fsdp" in training else "8.39"
        assert start.choice.startswith(f"{card} GiB a card and 264.83")


@pytest.mark.parametrize(
    ("training", "fits"),
    [
        ({"fsdp": "full_shard"}, True),
        ({"parallelism": {"pp_size": 8}}, True),
        ({"parallelism": {"pp_size": 8}, "fsdp_config": {"cpu_ram_efficient_loading": False}}, False),
    ],
)
def test_the_memory_of_a_node_counts_where_it_is_known(training: dict[str, Any], fits: bool) -> None:
    node = replace(cluster_of("8xH100").hardware(), host_memory_bytes=128 * GIB)
    arguments = ("llama-3-8b", node, 8)
    if fits:
        assert plan_of(*arguments, gradient_accumulation_steps=16, **training).world_size == 8
    else:
        assert refusal(*arguments, gradient_accumulation_steps=16, **training)[:2] == (
            "plan.start_host",
            "at least 241.32 GiB of 128.00 GiB of host memory",
        )


def test_offloaded_states_are_counted_on_the_host() -> None:
    """8 B under ZeRO-3 with everything offloaded: 18 bytes a parameter over the ranks of the node, one
    copy in all.
    """
    node = replace(cluster_of("8xH100").hardware(), host_memory_bytes=100 * GIB)
    found = refusal("llama-3-8b", node, 8, deepspeed={"zero_optimization": OFFLOADED})
    assert found[0] == "plan.states_host" and "of 100.00 GiB of host memory" in found[1]
    room = room_of(plan_of("llama-3-8b", "8xH100", deepspeed={"zero_optimization": OFFLOADED}), node)
    shape = shape_from_config(known_models()["llama-3-8b"].config)
    assert room is not None and room.states_host is not None and room.states_card == 0
    assert room.states_host - 8 * INTERPRETER == pytest.approx(18 * shape.num_parameters, rel=0.02)


def test_the_reported_case_is_refused_with_its_bytes() -> None:
    """70 B, ZeRO-3 with offload, two processes on 23 GiB: `plan` said 591 GiB a rank and went on."""
    code, found, _ = refusal("llama-3-70b", CPU, 2, deepspeed={"zero_optimization": OFFLOADED})
    assert code == "plan.states_host" and found.endswith("of 23.00 GiB of host memory")
    assert refusal("llama-3-8b", CPU, 2, fsdp="full_shard")[0] == "plan.states_host"


def test_frozen_models_are_made_beside_the_first() -> None:
    """An 8 B policy and its reference under ZeRO-3 on eight cards: 2 bytes a parameter over them, and the
    policy's masters and gradients; a second buffer of those, or one tensor whole, beside them.
    """
    plan = plan_of("llama-3-8b", "8xH100", algorithm="dpo", distributed_strategy="zero3")
    alone = plan_of("llama-3-8b", "8xH100", distributed_strategy="zero3")
    hardware = cluster_of("8xH100").hardware()
    both, one = room_of(plan, hardware), room_of(alone, hardware)
    assert both is not None and one is not None
    shape = shape_from_config(known_models()["llama-3-8b"].config)
    largest = 4 * shape.vocab * shape.hidden_size
    share = shape.num_parameters / 8
    assert one.start_card == pytest.approx((6 + 2 * 4) * share, rel=0.01)
    assert both.start_card == pytest.approx((6 + 4 + 2) * share + largest, rel=0.01)


def test_the_search_leaves_out_what_cannot_start_and_says_so() -> None:
    shape = shape_from_config(known_models()["llama-3-70b"].config)
    found = search(SearchSpec(shape, cluster_of("64xH100"), 2048))
    for candidate in found:
        whole = candidate.work.start is CARD
        assert ("cannot start" in candidate.impossible) == whole, candidate.strategy
    known = replace(
        cluster_of("64xH100"), machine=replace(cluster_of("64xH100").machine, host_memory=1024.0 * GIB)
    )
    hosts = {
        c.strategy: c.impossible
        for c in search(SearchSpec(shape, known, 2048))
        if "of a host" in c.impossible
    }
    assert (
        set(hosts) == {layout.name for layout in layouts() if layout.start in (HOST, ARRIVES)}
        and "complete in 8" in hosts["ddp"]
    )


def test_a_model_that_no_card_holds_is_sent_to_a_rollout_server_in_parts() -> None:
    rollout = {"rewards": "length", "max_completion_length": 64, "server": {"url": "http://127.0.0.1:8000"}}
    common: dict[str, Any] = {"algorithm": "grpo", "per_device_train_batch_size": 8, "grpo": {"beta": 0.0}}
    plan = plan_of("llama-3-70b", "128xH100", fsdp="full_shard", rollout=rollout, **common)
    assert plan.strategy == "fsdp" and not plan.engine.gather_for_generation  # type: ignore[union-attr]


def test_ranks_read_their_own_parts_where_the_files_hold_every_tensor_as_it_is() -> None:
    """Else rank 0 holds the whole; what is not certain counts as that."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
    llama, mixtral = (
        replace(shape_from_config({"model_type": family, "intermediate_size": 96, **sizes}), in_files=True)
        for family in ("llama", "mixtral")
    )
    scored = replace(llama, scalar_head=True)  # the head is drawn and sent
    others = [replace(llama, composite="gemma3"), replace(mixtral, model_type="gpt_oss")]
    assert start_of(FIRST, [llama, scored, mixtral, *others], quantised=False) == PARTS
    for shapes in (
        [replace(mixtral, model_type="dbrx")],
        [replace(llama, model_type="hrm_text")],
        [llama, replace(llama, in_files=False)],
    ):
        assert start_of(FIRST, shapes, quantised=False) is FIRST
        assert start_of(FIRST, shapes, quantised=True) is HOST
    packed = start_of(FIRST, [llama], quantised=True)
    assert packed is not None and packed.words != PARTS.words and replace(packed, words=PARTS.words) == PARTS
    packed = start_of(HOST, [llama], quantised=True)
    assert packed is not None and packed.words != HOST.words and replace(packed, words=HOST.words) == HOST
    assert start_of(CARD, [llama], quantised=False) is CARD
    assert start_of(FIRST, [llama], quantised=False, decomposed=True) is FIRST
    roles = [ModelBytes(800.0, 10.0, 1.0), ModelBytes(800.0, 10.0, 1.0)]
    assert card_peak(PARTS, roles) == 20 and host_peak(PARTS, roles, 4) == 8 + 4 * INTERPRETER


def test_a_node_reads_what_its_ranks_hold_and_says_how_long() -> None:
    """16 cards on two nodes: half of the weights each under fsdp, all of them under ddp and hsdp."""
    shape = shape_from_config(known_models()["llama-3-8b"].config)
    whole, hardware = 2 * shape.num_parameters, cluster_of("16xH100").hardware()
    for training, share in (
        ({"fsdp": "full_shard"}, 0.5),
        ({"parallelism": {"dp_replicate_size": 2, "dp_shard_size": 8}}, 1.0),
        ({"parallelism": {"pp_size": 4, "dp_shard_size": 4}}, 0.5),
        ({"distributed_strategy": "zero2"}, 1.0),
        ({"distributed_strategy": "zero3"}, 0.5),
    ):
        plan = plan_of("llama-3-8b", "16xH100", gradient_accumulation_steps=16, **training)
        room = room_of(plan, hardware)
        assert room is not None and room.start_read == 0  # drawn from the seed
        in_files = replace(plan, shape=replace(shape, in_files=True, stored="bfloat16"))
        room = room_of(in_files, hardware)
        assert room is not None and room.start_read == pytest.approx(share * whole), training
        [decision] = room_decisions(in_files, hardware, room)
        seconds = "8s" if share < 1 else "16s"
        assert decision.reason.endswith(f"of model files a node, {seconds} at 1 GB/s")


def test_a_weight_that_is_packed_or_made_plain_is_read_whole_by_every_node() -> None:
    """A rank keeps a shard of what it has packed; of experts in 8 bits it reads those that it holds."""
    packs = {"r": 8, "quantization_bit": 4}
    fp8: dict[str, Any] = {"quantised": "fp8", "file_bytes": 10**9}
    for model, lora, stored, share in (
        ("llama-3-8b", {"r": 8}, {}, 0.5),
        ("llama-3-8b", packs, {}, 1.0),
        ("llama-3-8b", {"r": 8}, fp8, 1.0),
        ("mixtral-8x7b", {"r": 8}, fp8, 0.5),
    ):
        plan = plan_of(model, "16xH100", lora=lora, fsdp="full_shard", gradient_accumulation_steps=16)
        assert plan.shape is not None
        shape = replace(plan.shape, in_files=True, stored="bfloat16", **stored)
        found = bytes_a_node(replace(plan, shape=shape), PARTS)
        assert found == pytest.approx(share * (shape.file_bytes or 2 * shape.num_parameters)), (model, lora)


def test_a_layer_is_packed_beside_what_came_before_it_but_not_beside_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Llama 3 8B's last packed weight is 4096 × 14336: 3.5 times its fp32 bytes and its packed ones, less a
    rank's part of an untied head, which is kept too, but read after it.
    """
    machine = replace(CPU, host_memory_bytes=2**42, memory_bytes=2**42)
    packs = {"r": 8, "quantization_bit": 4}
    plan = plan_of("llama-3-8b", machine, 64, packs, distributed_strategy="fsdp", mixed_precision="no")
    assert plan.shape is not None
    starts = []
    for tied, packing in ((False, 2.5), (True, 2.5), (True, -1.0)):  # the last: neither weight nor scratch
        monkeypatch.setattr("paceline.plan.cost.memory.fits.PACKING", packing)
        shape = replace(plan.shape, in_files=True, stored="bfloat16", tied=tied)
        room = room_of(replace(plan, shape=shape), machine)
        assert room is not None and room.start_host is not None
        starts.append(room.start_host / 64)
    head, weight = 4 * 128256 * 4096 / 64, 4096 * 14336
    assert starts[1] - starts[0] == pytest.approx(head, rel=0.2)  # the plan keeps as much in both
    assert starts[1] - starts[2] == pytest.approx(3.5 * 4 * weight, rel=0.01)


def test_what_an_engine_flattens_is_there_twice_for_a_moment() -> None:
    """ZeRO-1 and 2 copy all weights into one buffer; stage 3 partitions each tensor as it comes."""
    hardware = cluster_of("8xH100").hardware()
    count = 2 * shape_from_config(known_models()["llama-3-8b"].config).num_parameters
    sizes = {}
    for stage in (1, 2, 3):
        room = room_of(plan_of("llama-3-8b", "8xH100", distributed_strategy=f"zero{stage}"), hardware)
        assert room is not None
        sizes[stage] = room.start_card
    assert sizes[1] == sizes[2] == pytest.approx(2 * count, rel=0.01) and sizes[3] < count
    kept = replace(ModelBytes(100.0, 0.0, 15.0), passing_host=5.0)  # the same on a host
    assert host_peak(replace(PARTS, flattens=True), [kept], 2) == 2 * (15 + 5) + 2 * INTERPRETER


def test_what_engines_hold_for_a_moment_is_host_memory_on_a_cpu() -> None:
    """Bytes a parameter of two processes in fp32: ZeRO-1's flattened weights (4 + 4), ZeRO-3's part of
    weights, masters and gradients (3 × 4 / 2); ddp's buckets come when they are written (4).
    """
    machine = replace(CPU, host_memory_bytes=2**40, memory_bytes=2**40)
    shape = replace(shape_from_config(known_models()["llama-3-8b"].config), in_files=True)
    for name, each in (("ddp", 4), ("zero1", 8), ("zero2", 8), ("zero3", 6)):
        plan = plan_of("llama-3-8b", machine, 2, distributed_strategy=name, mixed_precision="no")
        room = room_of(replace(plan, shape=shape), machine)
        assert room is not None and room.start_card == 0
        assert room.start_host - 2 * INTERPRETER == pytest.approx(
            2 * each * shape.num_parameters, rel=0.01
        ), name


def test_a_folder_that_stays_mapped_takes_no_memory_of_each_process() -> None:
    """bf16 weights, as they are, go to eight cards: their pages are the file's, for all processes."""
    shape = shape_from_config(known_models()["llama-3-8b"].config)
    plan = plan_of("llama-3-8b", "8xH100", lora={"r": 8}, distributed_strategy="ddp")
    hosts = []
    for found in (shape, replace(shape, in_files=True), replace(shape, in_files=True, stored="bfloat16")):
        room = room_of(replace(plan, shape=found), cluster_of("8xH100").hardware())
        assert room is not None
        hosts.append((room.start_host - 8 * (INTERPRETER + PEFT)) / 8)
    assert hosts[0] == hosts[1] == 4 * shape.num_parameters and hosts[2] < 0.1 * hosts[0]


def test_what_stays_mapped_on_a_cpu_belongs_to_no_process_and_counts_once_a_node() -> None:
    """A frozen base in the dtype of its files; its 4-bit copy and adapters each process has for itself."""
    machine = replace(CPU, host_memory_bytes=2**40, memory_bytes=2**40)
    plain = replace(shape_from_config(known_models()["llama-3-8b"].config), in_files=True)
    whole = 4 * plain.num_parameters
    for lora, own in (({"r": 8}, 0.02), ({"r": 8, "quantization_bit": 4}, 0.16)):
        plan = plan_of("llama-3-8b", machine, 2, lora=lora, distributed_strategy="ddp", mixed_precision="no")
        cast, stays = (
            room_of(replace(plan, shape=replace(plain, stored=stored)), machine) for stored in ("", "float32")
        )
        assert cast is not None and stays is not None and cast.states_host and stays.states_host
        interpreters = 2 * (INTERPRETER + PEFT)
        kept = (cast.states_host - stays.states_host) / whole  # of two processes one has it for itself
        assert stays.start_host - interpreters < 2 * own * whole, lora
        assert kept == pytest.approx(0.13 if "quantization_bit" in lora else 1.0, abs=0.01), lora


@pytest.mark.parametrize(
    ("kinds", "tied", "in_files"),
    [
        ({"a": "BF16"}, True, True),
        ({"a": "F32", "b": "BF16"}, False, True),
        ({"a": "BF16", "lm_head.weight": "BF16"}, False, True),
        ({"a": "BF16", "lm_head.weight": "BF16"}, True, False),  # compared whole
        ({"a": "BF16", "b": "F8_E4M3"}, False, False),
        ({}, False, False),
    ],
)
def test_a_folder_is_read_in_parts_where_its_tensors_are_numbers(
    kinds: dict[str, str], tied: bool, in_files: bool, tmp_path: Path
) -> None:
    widths, at, header = {"BF16": 2, "F32": 4, "F8_E4M3": 1}, 0, {}
    for name, kind in kinds.items():
        header[name] = {"dtype": kind, "shape": [2], "data_offsets": [at, at + 2 * widths[kind]]}
        at += 2 * widths[kind]
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
    shape = shape_from_config(
        {"model_type": "llama", "intermediate_size": 96, "tie_word_embeddings": tied, **sizes}
    )
    assert with_stored(shape, tmp_path, {}, own_code=False).in_files == in_files
    assert not with_stored(shape, tmp_path, {}, own_code=True).in_files
