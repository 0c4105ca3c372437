"""The balance loss of a mixture's experts is the same under every strategy, fillers and all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.integration]
pytest.importorskip("deepspeed")
WORKER = Path(__file__).with_name("router_worker.py")


def found(folder: Path, ranks: int) -> dict[str, Any]:
    codes, outputs = run_ranks("-", ranks, folder, script=WORKER)
    assert codes == [0] * ranks, outputs
    first: dict[str, Any] = json.loads((folder / "0.json").read_text())
    return first


def test_it_is_the_same_under_every_strategy_unless_its_scope_is_the_micro_batch(tmp_path: Path) -> None:
    one, two = found(tmp_path / "one", 1), found(tmp_path / "two", 2)
    single = one["single"]
    assert single[0][1] > 0.4  # 0.5 · the loss, which is 2 (experts a token) where they are balanced
    assert single[0] != single[1]
    for name in ("ddp", "fsdp", "zero3"):
        assert close(two[name], single), name
        assert close(two[f"{name} adapter"], one["single adapter"]), name
        assert close(two[f"{name} frozen"], one["single frozen"]), name
        assert close(two[f"{name} part"], one["single part"]), name
    assert not close(one["single part"], single) and not close(one["single part"], one["single frozen"])
    assert not close(one["single adapter"], single) and not close(one["single frozen"], single)
    assert not close(two["micro_batch"], one["micro_batch"])
    # each rank of tensor parallelism has half of the experts and all tokens: micro-batches are as large
    assert close(two["tp"], single) and close(two["tp of both"], one["micro_batch"])


def close(steps: list[list[float]], others: list[list[float]]) -> bool:
    return all(a == pytest.approx(b, rel=2e-5) for a, b in zip(steps, others, strict=True))
