"""``paceline.train(metrics=…)`` from end to end: the answers of each evaluation, on one rank and on two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import TINY_LLAMA, instruction_rows

import paceline

pytestmark = [pytest.mark.integration]
#: Says which answer it was, so that equal means are equal answers
MINE = (
    "import zlib\ndef which(answer, expected): return zlib.crc32(f'{expected}: {answer}'.encode()) / 2**32\n"
)


def test_metrics_of_ones_own_are_the_same_on_one_rank_and_on_two(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    for name, value in {"CACHE": str(tmp_path / "cache"), "LEDGER": "off"}.items():
        monkeypatch.setenv(f"PACELINE_{name}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from metrics_of_mine import which  # type: ignore[import-not-found]

    found = []
    for ranks in (1, 2):
        config = {
            "model": {"tokenizer": tokenizer_dir, "config": TINY_LLAMA},
            "data": {"max_length": 64},
            "generation": {"max_new_tokens": 5, "temperature": 0.0},
            "training": {
                "output_dir": tmp_path / f"run-{ranks}",
                "distributed_strategy": "ddp" if ranks > 1 else "single",
                "per_device_train_batch_size": 4 // ranks,
                "per_device_eval_batch_size": 3,
                "max_steps": 2,
                "learning_rate": 5e-3,
                "eval_strategy": "steps",
                "eval_steps": 2,
                "eval_on_start": True,
                "save_strategy": "no",
                "report_to": "none",
                "use_cpu": True,
            },
        }
        run = paceline.train(
            config,
            dataset=instruction_rows(16),
            eval_dataset=instruction_rows(7, seed=3),
            metrics=["exact_match", which],
            nproc=ranks,
            quiet=True,
        )
        assert run.plan.world_size == ranks and run.outcome == "completed"
        found.append(run.arrays("evals"))
    one, two = found
    assert {"eval_exact_match", "eval_which", "eval_answer_tokens"} <= set(one) == set(two)
    assert one["step"].tolist() == [0, 2] and one["eval_which"][0] != one["eval_which"][1]
    for name in ("eval_exact_match", "eval_which", "eval_answer_tokens", "eval_answers_ended"):
        assert two[name].tolist() == one[name].tolist(), name
    np.testing.assert_allclose(two["eval_loss"], one["eval_loss"], atol=1e-6)
