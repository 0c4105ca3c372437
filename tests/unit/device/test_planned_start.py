"""Bytes before step 1 are those that the plan says, on a device and on its host, for every way to start."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import packed_stand_in
import peft.tuners.lora.bnb  # noqa: F401  # imported in the emulation, bitsandbytes fails
import pytest
import torch
from device_steps import LLAMA
from emulated_device import emulated
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.algorithms.algorithm import algorithm_class
from paceline.config.schema import Config
from paceline.models.compute_dtype import weight_owners
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import skeleton
from paceline.models.loading.weights_source import buffers_keep_dtype
from paceline.plan.cost.memory.fits import MemoryNeeded, room_of
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.family import families
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.workload.startup_memory import INTERPRETER, PEFT
from paceline.protocols.roles import Role
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import World
from paceline.strategies.registry import make_strategy

sys.path.append(str(Path(__file__).parents[1] / "models"))
from model_families import FAMILIES  # noqa: E402

WIDE = {"hidden_size": 64, "intermediate_size": 192, "vocab_size": 1024}
SMALL = 48 * 2**10  # what probes of kernels take, of models of a megabyte
ADAPTERS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": {"r": 2}},
    "qlora": {"lora": {"r": 2, "quantization_bit": 4}},
}
HARDWARE = replace(
    cluster_of("1xH100").hardware(), packages={"peft": "0.19", "bitsandbytes": "0.49"}, products=()
)


def job(
    model: dict[str, Any], precision: str, ways: dict[str, Any], **training: Any
) -> tuple[Config, Plan, MemoryNeeded]:
    """A job on one card, its plan, and what that says of the start."""
    training = {"distributed_strategy": "single", "mixed_precision": precision, **training}
    config = Config.model_validate(
        {
            "model": {"tokenizer": "none", **model},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": training,
            **ways,
        }
    )
    shape = shape_of(config.model)
    plan = make_plan(Job(config, HARDWARE, shape=shape, world_size=1, launcher="single", run_dir="none"))
    room = room_of(plan, HARDWARE)
    assert room is not None
    return config, plan, room


def peak_of(config: Config, plan: Plan) -> int:
    """Build all models of the plan on an emulated device: the most bytes there."""
    with emulated((9, 0), "cuda") as machine:
        strategy = make_strategy("single", World(0, 0, 1, 1, machine.device, "none", None), plan)
        algorithm, held = algorithm_class(plan.algorithm)(), []
        for role in (*algorithm.trains, *(Role(name) for name, m in plan.models.items() if not m.trained)):
            frozen = role not in algorithm.trains
            factory = HFModelFactory(
                config.model,
                role,
                compute_dtype=getattr(torch, plan.precision.compute),
                attention=plan.attention,
                device=machine.device,
                adapter=plan.adapter,
                frozen=frozen,
            )
            held.append(strategy.prepare(role, factory, None if frozen else plan.optimizer))
        return machine.peak


def check(peak: int, room: MemoryNeeded) -> None:
    assert peak == pytest.approx(room.start_card, rel=0.05, abs=SMALL), peak / room.start_card
    assert room.start_card > 4 * SMALL  # else nothing is asked


@pytest.mark.parametrize(
    ("algorithm", "way", "precision"),
    [
        pytest.param(algorithm, way, precision, marks=() if (i + j + k) % 3 == 0 else pytest.mark.full)
        for i, algorithm in enumerate(("sft", "dpo", "reward"))
        for j, way in enumerate(ADAPTERS)
        for k, precision in enumerate(("no", "bf16", "fp16"))
    ],
)
def test_a_card_holds_what_is_planned(
    algorithm: str, way: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_stand_in.stand_in(monkeypatch)
    config, plan, room = job({"config": {**LLAMA, **WIDE}}, precision, ADAPTERS[way], algorithm=algorithm)
    assert ("reference" in plan.models) == (algorithm == "dpo" and way == "full")
    check(peak_of(config, plan), room)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if i % 4 == 0 else pytest.mark.full) for i, name in enumerate(FAMILIES)],
)
def test_a_familys_start_is_planned(family: str) -> None:
    model = {"config": {**FAMILIES[family], **({} if family == "gpt2" else WIDE)}}
    for way in ("full", "lora"):
        config, plan, room = job(model, "bf16", ADAPTERS[way])
        peak = peak_of(config, plan)
        assert peak == pytest.approx(room.start_card, rel=0.05, abs=SMALL), (way, peak / room.start_card)


def test_a_rank_of_fsdp_holds_its_share_and_one_whole_tensor() -> None:
    """One of eight, of a model whose largest tensors are embedding and head, in fp32."""
    config = Config.model_validate(
        {
            "model": {"tokenizer": "none", "config": {**LLAMA, **WIDE}},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": {"distributed_strategy": "fsdp", "mixed_precision": "bf16"},
        }
    )
    hardware = cluster_of("8xH100").hardware()
    plan = make_plan(
        Job(config, hardware, shape=shape_of(config.model), world_size=8, launcher="torchrun", run_dir="none")
    )
    room = room_of(plan, hardware)
    assert plan.memory is not None and plan.memory.largest is not None and room is not None
    with emulated((9, 0), "cuda", count=8) as machine:
        world = World.pretend(8)
        try:
            world.device = machine.device
            factory = HFModelFactory(
                config.model, compute_dtype=torch.bfloat16, attention=plan.attention, device=machine.device
            )
            held = make_strategy("fsdp", world, plan).prepare(Role.POLICY, factory, plan.optimizer)
            share, whole = plan.memory.largest.parameters, 4 * WIDE["vocab_size"] * WIDE["hidden_size"]
            assert machine.live == pytest.approx(share, rel=0.01), held
            assert share + whole <= machine.peak + 1024 and machine.peak < 1.05 * (share + whole)
            check(machine.peak, room)
        finally:
            world.close(ok=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model stored in fp32 and in bf16."""
    found = {}
    for name in ("float32", "bfloat16"):
        found[name] = tmp_path_factory.mktemp(name)
        config, _, _ = job({"config": {**LLAMA, **WIDE}}, "no", {})
        HFModelFactory(config.model)().hf.to(dtype=getattr(torch, name)).save_pretrained(found[name])  # type: ignore[call-arg]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ADAPTERS)
def test_a_folder_is_read_in_its_dtype_and_arrives_as_it_is_kept(
    folders: dict[str, Path], dtype: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_stand_in.stand_in(monkeypatch)
    config, plan, room = job({"name_or_path": str(folders[dtype])}, "bf16", ADAPTERS[way])
    assert plan.shape is not None
    check(peak_of(config, plan), room)
    interpreter = INTERPRETER + (PEFT if plan.adapter is not None else 0)
    largest = torch.float32.itemsize * WIDE["vocab_size"] * WIDE["hidden_size"]
    assert room.start_host - interpreter == largest  # the rest stays mapped
    factory = HFModelFactory(config.model)
    assert factory.weights.dtype(None) == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_read_in_its_files_dtype_stays_mapped(folders: dict[str, Path], dtype: str) -> None:
    """Eight processes of a node then share these pages (``plan.cost.starts.mapped``)."""
    config, _, _ = job({"name_or_path": str(folders[dtype])}, "bf16", {})
    hf = HFModelFactory(config.model).weights.from_files(None)
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [
        [int(end, 16) for end in parts[0].split("-")]
        for parts in lines
        if parts[-1].startswith(str(folders[dtype].resolve()))
    ]
    assert spans
    for name, parameter in hf.named_parameters():
        assert any(first <= parameter.data_ptr() < last for first, last in spans), name


def test_a_head_that_is_not_stored_is_read_in_fp32(folders: dict[str, Path]) -> None:
    _, plan, room = job({"name_or_path": str(folders["bfloat16"])}, "bf16", {}, algorithm="reward")
    assert plan.shape is not None
    assert room.start_host - INTERPRETER == 4 * plan.shape.num_parameters


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
def test_what_the_plan_knows_of_families_by_name(every: int) -> None:
    """Which are read in fp32, and which have no low-precision copies: a run finds out by building."""
    rounded, own_classes = set(), set()
    asked = dict(list(families().items())[::every])
    for family in (name for name, verdict in asked.items() if verdict.trained):
        try:
            config = AutoConfig.for_model(family, num_hidden_layers=2).get_text_config()
            hf = skeleton(AutoModelForCausalLM, config, None, {"trust_remote_code": False})  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, StrictDataclassError):  # its defaults build no model
            continue
        if not buffers_keep_dtype(AutoModelForCausalLM, config, None, torch.bfloat16):  # type: ignore[arg-type]
            rounded.add(family)
        _, unknown = weight_owners(hf.base_model, hf.get_output_embeddings())
        if any(not name.endswith("RMSNorm") for name in unknown):
            own_classes.add(family)
    assert rounded == {kind for kind, known in asked.items() if known.read_wide}
    assert own_classes == {kind for kind, known in asked.items() if known.autocast}
