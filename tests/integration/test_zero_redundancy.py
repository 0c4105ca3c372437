"""zero_redundancy equals ddp bit for bit, with every optimizer that is built, and either goes on from what
the other has saved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.integration
Found = dict[int, list[dict[str, Any]]]
WAYS = ("ddp", "zero_redundancy")
# optimizer, its arguments, what is trained ("": everything), options of the strategy
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "adamw": ("adamw_torch_fused", {}, "", {}),
    "one buffer a rank": ("adamw_torch", {"foreach": True}, "", {"parameters_as_bucket_view": True}),
    "sgd": ("sgd", {"momentum": 0.9, "fused": True}, "", {}),
    "adagrad": ("adagrad", {}, "", {"accumulation": 1}),
    "rmsprop": ("rmsprop", {"centered": True}, "", {}),
    "adafactor": ("adafactor", {}, "", {}),
    "unused parameters looked for": ("adamw_torch", {}, "", {"ddp_find_unused_parameters": True}),
    "a rank without a parameter": ("adamw_torch_fused", {}, "head", {}),
    "such a rank, one buffer": ("adamw_torch", {}, "head", {"parameters_as_bucket_view": True}),
}
WORLDS = pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.full)])
WORKER = Path(__file__).with_name("zero_redundancy_worker.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What every rank of the worlds of 2 and 3 found, by case; each runs when it is first asked."""

    class Lazy(Found):
        def __missing__(self, world_size: int) -> list[dict[str, Any]]:
            out = tmp_path_factory.mktemp(f"world{world_size}")
            (out / "cases.json").write_text(json.dumps(CASES))
            codes, output = run_ranks("all", world_size, out, script=WORKER)
            assert codes == [0] * world_size, "\n".join(output)
            self[world_size] = [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]
            return self[world_size]

    return Lazy()


@WORLDS
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_as_ddp(found: Found, case: str, world_size: int) -> None:
    """float64, six steps, clipping active: losses, norms, weights, and every moment that was exported in
    the middle.
    """
    ranks = [rank[case] for rank in found[world_size]]
    ddp = ranks[0]["ddp"]
    assert max(step["norm"] for step in ddp["steps"]) > 0.3, "clipping was never active"
    assert ddp["parameters"]["head.weight"] != ddp["exported"]["policy/head.weight/param"], (
        "nothing was learnt after the export"
    )
    for rank in ranks:
        for part in ("steps", "exported", "parameters"):
            assert rank["zero_redundancy"][part] == ddp[part], part
    assert sum(rank["zero_redundancy"]["kept"] for rank in ranks) == ddp["kept"], "each moment is kept once"
    assert (0 in [rank["zero_redundancy"]["kept"] for rank in ranks]) is (CASES[case][2] == "head")


@WORLDS
@pytest.mark.parametrize("case", CASES)
def test_either_goes_on_from_the_other(found: Found, case: str, world_size: int) -> None:
    for rank in found[world_size]:
        straight = rank[case]["ddp"]
        for source, target in ((a, b) for a in WAYS for b in WAYS):
            again = rank[case][f"{source} to {target}"]
            assert again["steps"] == straight["steps"][3:], f"{source} to {target}"
            assert again["parameters"] == straight["parameters"], f"{source} to {target}"


@WORLDS
def test_an_overflow_is_skipped_by_all_ranks_as_under_ddp(found: Found, world_size: int) -> None:
    ranks = [rank["overflow"] for rank in found[world_size]]
    assert ranks[0]["ddp"]["skipped"][0] == "overflow" and ranks[0]["ddp"]["skipped"][-1] is None
    for rank in ranks:
        for part in ("skipped", "losses", "parameters"):
            assert rank["zero_redundancy"][part] == ranks[0]["ddp"][part], part
        assert sum("scale" in scaler for scaler in rank["zero_redundancy"]["scaler"]) == 1
