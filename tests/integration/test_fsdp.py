"""FSDP2: every way to shard equals one process; state is each rank's own blocks, resumed bit for bit and
exported by the real program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from support import Run, write_yaml
from test_lora import save_base
from test_pipeline import tensors_of

from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.models.loading.weights_source import FROM_CHECKPOINT, READ_IN_PARTS
from paceline.runlog.events import Step, read_events

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("fsdp_worker.py")
BOUNDS = {"float64": 1e-10, "tied": 1e-10, "grown": 1e-10, "bfloat16": 5e-3}
SHARDINGS = {
    2: {
        "full_shard/float64",
        "shard_grad_op/float64",
        "recompute/float64",  # and wrapped by size
        "offload/bfloat16",
        "meta/tied",
        "meta/grown",
    },
    4: {
        "full_shard/float64",
        "shard_grad_op/float64",
        "no_shard/float64",
        "hybrid_shard/float64",
        "hybrid_shard_zero2/float64",
    },
}
WORLDS = pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])


class Found(dict[int, list[dict[str, Any]]]):
    """What every rank of the worlds of 2 and 4 found, by scenario; each world is run when it is first
    asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, world_size: int) -> list[dict[str, Any]]:
        out = self.folder / f"world{world_size}"
        assert not out.exists(), "this world has failed already"
        scenarios = "start+" * (world_size == 2) + "parity+state"
        codes, output = run_ranks(scenarios, world_size, out, script=WORKER)
        assert codes == [0] * world_size, "\n".join(output)
        self[world_size] = [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]
        return self[world_size]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("fsdp"))


@WORLDS
def test_every_sharding_equals_one_process(found: Found, world_size: int) -> None:
    """Six steps: loss, gradient norm, tokens, every parameter at the end. Some ranks have no labels;
    clipping is active; accumulation 2.
    """
    alone = found[world_size][0]["parity"]["alone"]
    assert all(step["norm"] > 0.5 for step in alone["float64"]["steps"]), "clipping was never active"
    assert alone["float64"]["steps"][-1]["loss"] < 0.9 * alone["float64"]["steps"][0]["loss"]
    for rank in found[world_size]:
        runs = rank["parity"]["found"]
        if world_size == 2:
            assert runs["meta/grown"]["start"] == READ_IN_PARTS
        assert runs.keys() == SHARDINGS[world_size]
        for name, run in runs.items():
            kind = name.partition("/")[2]
            for a, b in zip(alone[kind]["steps"], run["steps"], strict=True):
                assert abs(a["loss"] - b["loss"]) < BOUNDS[kind], name
                assert abs(a["norm"] - b["norm"]) < BOUNDS[kind] * max(1.0, a["norm"]), name
                assert a["tokens"] == b["tokens"], name
            assert alone[kind]["parameters"].keys() == run["parameters"].keys()
            for parameter, values in alone[kind]["parameters"].items():
                apart = max(abs(x - y) for x, y in zip(values, run["parameters"][parameter], strict=True))
                # Adam's first steps go by a gradient's sign: where bf16 is emulated, its noise counts twice
                assert apart < BOUNDS[kind] * (2 if kind == "bfloat16" else 1), (name, parameter)


@WORLDS
def test_all_ranks_return_the_same_bits(found: Found, world_size: int) -> None:
    first, *others = [
        {name: run["steps"] for name, run in rank["parity"]["found"].items()} for rank in found[world_size]
    ]
    assert all(other == first for other in others)


def test_each_rank_reads_its_part_of_the_folder_once(found: Found) -> None:
    """For a policy and a frozen reference: half of the folder each."""
    for rank in found[2]:
        start = rank["start"]
        assert start["equal"] and start["read"] == pytest.approx(start["size"], rel=0.01)


@pytest.mark.slow
def test_resume_of_hybrid_shards_is_bit_exact(found: Found) -> None:
    """Every loss, norm, and element of weights and moments, of three steps after the import; full_shard on
    two ranks through the program, below.
    """
    for rank in found[4]:
        state = rank["state"]
        assert state["straight"] == state["again"]
        kinds = {name.split("|")[1] for name in state["again"]["blocks"]}
        assert kinds >= {"param", "exp_avg", "exp_avg_sq"}


@WORLDS
def test_each_rank_holds_and_writes_its_share(found: Found, world_size: int) -> None:
    """Moments are twice the parameters; an even cut gives every rank the same; all ranks write."""
    shares = [rank["state"]["bytes"] for rank in found[world_size]]
    whole = 4 * sum(map(len, found[2][0]["parity"]["alone"]["float64"]["parameters"].values()))
    shards = 2  # 2 ranks shard; of 4, 2 copies of 2 shards
    for share in shares:
        # rows that do not divide are padded
        assert whole / shards <= share["parameters"] < 1.05 * whole / shards
        assert share["gradients"] == share["parameters"]
        assert 1.9 * share["parameters"] < share["optimizer"] <= 2 * share["parameters"]
    written = [sum(map(len, rank["state"]["straight"]["blocks"].values())) for rank in found[world_size]]
    assert min(written) > 0.4 * max(written)


@WORLDS
def test_evaluation_counts_every_row_once(found: Found, world_size: int) -> None:
    """99 rows, one rank with a micro-batch more than the others."""
    first = found[world_size][0]["state"]["eval"]
    assert first["rows"] == 99
    assert 0 < first["sums"]["correct/nll"] < first["weights"]["nll"]
    assert all(rank["state"]["eval"] == first for rank in found[world_size])


@WORLDS
def test_decoding_and_the_export_give_the_same_logits(found: Found, world_size: int, tmp_path: Path) -> None:
    """What the gathered model says while training pauses is what Transformers says of the exported folder."""
    import torch
    from transformers import AutoModelForCausalLM

    from paceline.checkpoint.export.hf_export import export_hf

    export_hf(Path(found[world_size][0]["state"]["checkpoint"]), tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(input_ids=torch.arange(4)[None] % 11).logits[0, :2].flatten()
    for rank in found[world_size]:
        assert torch.allclose(torch.tensor(rank["state"]["logits"]), expected, atol=1e-6)
        assert rank["state"]["together"] == rank["state"]["logits"], "gathering one layer at a time"
        # then embedding, last norm and head alone
        assert rank["state"]["whole"] == [len(dict(model.named_parameters())), 3]


def steps_of(run: Path) -> list[Step]:
    return [r.event for r in read_events(RunDir.at(run).events(0)) if isinstance(r.event, Step)]


def test_the_program_trains_resumes_and_exports(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    """``fsdp: full_shard`` in the YAML, two processes, bf16: the second half again from the checkpoint, when
    the values that it started from are gone, ends with the same weights and moments, and gives the same
    folder for Transformers.
    """
    from safetensors.torch import load_file

    base = tmp_path / "base"
    save_base(base, tiny()["model"]["config"], seed=3)
    config = tiny(
        fsdp="full_shard auto_wrap",
        output_dir=str(tmp_path / "whole"),
        max_steps=6,
        save_strategy="steps",
        save_steps=3,
        gradient_accumulation_steps=2,
        bf16=True,
    )
    config["model"] = {**config["model"], "name_or_path": str(base), "config": None}
    done = paceline("train", str(write_yaml(tmp_path / "whole.yaml", config)), "--nproc", "2")
    assert done.code == 0, done.err
    assert READ_IN_PARTS in RunDir.at(tmp_path / "whole").rank_log(0).read_text()
    weights = base / "model.safetensors"
    size, start = weights.stat().st_size, int.from_bytes(weights.read_bytes()[:8], "little")
    os.truncate(weights, 8 + start)
    os.truncate(weights, size)  # its header, and a hole
    checkpoint = tmp_path / "whole/checkpoints/step-00000003"
    config["training"] |= {"output_dir": str(tmp_path / "part"), "resume_from_checkpoint": str(checkpoint)}
    done = paceline("train", str(write_yaml(tmp_path / "part.yaml", config)), "--nproc", "2")
    assert done.code == 0, done.err
    assert FROM_CHECKPOINT in RunDir.at(tmp_path / "part").rank_log(0).read_text()
    before, after = steps_of(tmp_path / "whole")[3:], steps_of(tmp_path / "part")
    assert [(s.step, s.loss, s.grad_norm) for s in after] == [(s.step, s.loss, s.grad_norm) for s in before]
    assert len(after) == 3
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000006") for name in ("whole", "part"))
    assert one == other and any("exp_avg_sq" in name for name in one)
    done = paceline("export", str(tmp_path / "part"), "--to", str(tmp_path / "hf"))
    assert done.code == 0, done.err
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    with CheckpointReader(tmp_path / "whole/checkpoints/step-00000006") as reader:
        for name, tensor in exported.items():
            assert bool((reader.read("policy", name, "param") == tensor).all()), name
