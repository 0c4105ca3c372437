"""Tensor, sequence and context parallelism equal one process: layers, losses, attention, and six steps of
training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("parallel_worker.py")
SCENARIOS = {
    1: "parity",
    2: "head+attention+context+refusals+generation+some parity",
    4: "head+attention+parity",
}
PRECISE = 1e-10
IN_FP32_BY_THEMSELVES = ("cohere",)  # families whose own norms compute in fp32 whatever they are given


Ranks = list[dict[str, Any]]


class Found(dict[int, Ranks]):
    """What every rank of a world found, by scenario; each world is run when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, world_size: int) -> Ranks:
        self[world_size] = ranks_of(SCENARIOS[world_size], world_size, self.folder / f"world{world_size}")
        return self[world_size]


def ranks_of(scenarios: str, world_size: int, out: Path) -> Ranks:
    assert not out.exists(), "this world has failed already"
    codes, output = run_ranks(scenarios, world_size, out, script=WORKER)
    assert codes == [0] * world_size, "\n".join(output)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("parallel"))


@pytest.mark.full
def test_every_plan_style_computes_the_same(found: Found) -> None:
    """Losses, log-probabilities, entropies and every gradient of whole models, with and without
    recomputation.
    """
    for rank in ranks_of("tensor", 2, found.folder / "tensor"):
        assert len(rank["tensor"]) == 21
        for case, difference in rank["tensor"].items():
            assert difference < (1e-6 if case.startswith(IN_FP32_BY_THEMSELVES) else PRECISE), case


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_vocabulary_parallel_losses_equal_cross_entropy(found: Found, world_size: int) -> None:
    for rank in found[world_size]:
        assert len(rank["head"]) == 6
        assert max(rank["head"].values()) < PRECISE, rank["head"]


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_attention_over_shared_tokens_equals_full_attention(found: Found, world_size: int) -> None:
    for rank in found[world_size]:
        assert len(rank["attention"]) == 40
        assert max(rank["attention"].values()) < PRECISE, rank["attention"]


def test_models_on_shared_tokens(found: Found) -> None:
    for rank in found[2]:
        assert len(rank["context"]) == 8
        assert max(rank["context"].values()) < PRECISE, rank["context"]


def test_what_cannot_be_shared_is_refused_by_name(found: Found) -> None:
    assert found[2][0]["refusals"] == {
        "kv heads": ["models.tp_heads"],
        "no plan": ["models.tp_no_plan"],
        "vocabulary": ["models.tp_vocabulary"],
        "width": ["models.tp_width"],
        "ulysses heads": ["models.cp_heads"],
    }


def test_ranks_decode_the_tokens_of_the_whole_model(found: Found) -> None:
    for rank in found[2]:
        assert rank["generation"]["cut"] == rank["generation"]["whole"]


RUNS = {
    2: {"tp", "tp sp lp", "ulysses", "allgather bfloat16"},
    4: {"tp fsdp", "cp fsdp", "cp tp"},
}


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_equals_one_process(found: Found, world_size: int) -> None:
    """Six steps, token counts that differ, clipping active, accumulation 2; then an evaluation whose rows
    do not divide.
    """
    references = found[1][0]["parity"]
    first, last = references["float64"]["steps"][0], references["float64"]["steps"][-1]
    assert last["loss"] < 0.9 * first["loss"]
    assert all(step["norm"] > 0.5 for step in references["float64"]["steps"]), "clipping was never active"
    scenario = "some parity" if world_size == 2 else "parity"
    equal_one_process(references, [rank[scenario] for rank in found[world_size]], RUNS[world_size])


@pytest.mark.full
def test_every_way_to_cut_trains_as_one_process(found: Found) -> None:
    ranks = ranks_of("parity", 2, found.folder / "parity")
    names = {"tp sp", "tp sp lp float32", "tp sp lp bfloat16", "allgather"} | RUNS[2]
    equal_one_process(found[1][0]["parity"], [rank["parity"] for rank in ranks], names)


def equal_one_process(references: dict[str, Any], ranks: Ranks, names: set[str]) -> None:
    for rank in ranks:
        assert rank.keys() == names
        for name, run in rank.items():
            dtype = name.split()[-1] if name.split()[-1] in references else "float64"
            same_run(
                references[dtype], run, {"float64": PRECISE, "float32": 2e-6, "bfloat16": 5e-3}[dtype], name
            )


def same_run(alone: dict[str, Any], other: dict[str, Any], bound: float, name: str) -> None:
    """Every step's loss, norm and tokens, the evaluation, and every parameter; Adam makes much of a small
    gradient's last bits.
    """
    loose = {2e-6: 5e-5, 5e-3: 2e-2}.get(bound, bound)
    for a, b in zip(alone["steps"], other["steps"], strict=True):
        assert abs(a["loss"] - b["loss"]) < bound, name
        assert abs(a["norm"] - b["norm"]) < loose, name
        assert a["tokens"] == b["tokens"]
    assert alone["eval"]["weights"] == other["eval"]["weights"]
    assert alone["eval"]["rows"] == other["eval"]["rows"] == 23
    labels = alone["eval"]["weights"]["nll"]
    assert abs(alone["eval"]["sums"]["nll"] - other["eval"]["sums"]["nll"]) / labels < bound, name
    for key, values in alone["parameters"].items():
        assert max(abs(x - y) for x, y in zip(values, other["parameters"][key], strict=True)) < loose, (
            name,
            key,
        )


@pytest.mark.slow
def test_blocks_of_two_cuts_resume_bit_for_bit_and_decode_as_one_process(tmp_path: Path) -> None:
    """tp × fsdp: saved by blocks, read back by blocks, and read whole by one process."""
    for rank in ranks_of("state", 4, tmp_path / "state"):
        assert rank["state"]["equal"]
        assert rank["state"]["blocks"] > 0
        assert rank["state"]["said"] == rank["state"]["alone"]
