"""A sync of weights holds two tensors on a rank, a bucket and small pieces (256 MiB where a bucket has 64),
never the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.full]
BUCKET = 2**18
MODEL = {
    "hidden_size": 256,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 64,
}
ZERO3 = {"deepspeed": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_strategy": "ddp"},
    "fsdp": {"fsdp": "full_shard"},
    "tp": {"parallelism": {"tp_size": 2}},
    "zero3": ZERO3,
}


def test_a_sync_needs_two_tensors_and_a_bucket(tmp_path: Path) -> None:
    """Of models of 43 MiB, whose largest tensor has 2."""
    cases = {
        f"{name} {way}{' lora' if lora else ''}": (
            {"training": training, "model": MODEL, **({"lora": {"r": 4}} if lora else {})},
            way,
        )
        for name, training in STRATEGIES.items()
        for way in ("transfer", "folder")
        for lora in (False, True)
    }
    (tmp_path / "cases.json").write_text(json.dumps({"bucket": BUCKET, "cases": cases}))
    worker = Path(__file__).with_name("sync_memory_worker.py")
    codes, outputs = run_ranks("peak", 2, tmp_path, script=worker)
    assert codes == [0, 0], "\n".join(outputs)
    for rank in range(2):
        for name, found in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert found["all"] > 20 * found["largest"]
            assert found["peak"] <= 2 * found["largest"] + 4 * BUCKET, (rank, name, found)
