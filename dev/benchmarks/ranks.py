"""Two ranks under DDP against two independent one-rank runs side by side, at accumulation 2: what
synchronising costs.

python dev/benchmarks/ranks.py [--dtypes float32 bfloat16] [--rounds 3] [--steps 6] [--quick]
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import workload
from measure import median, paceline

GOALS = {"float32": 0.95, "bfloat16": 0.90}


def main() -> None:
    """DDP and the pair of loners in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=Path("outputs/benchmark-ranks"))
    parser.add_argument("--dtypes", nargs="*", default=list(GOALS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds, steps = (1, 2) if options.quick else (options.rounds, options.steps)
    folder = options.to.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    workload.write_tokenizer(folder / "tokenizer")
    workload.write_text_rows(folder / "rows.jsonl", workload.rows(4000))
    shape = (options.micro_batch, options.accumulation)
    report = []
    for dtype in options.dtypes:
        together, alone = [], []
        for _ in range(rounds):
            together.append(
                paceline(
                    folder, dtype=dtype, packing=True, steps=steps, nproc=2, warm_up=1, shape=shape
                ).tokens_per_second
            )
            alone.append(two_alone(folder, dtype, steps, shape))
        ratio = median(together) / median(alone)
        report.append(
            {"dtype": dtype, "ddp": together, "two_alone": alone, "ratio": ratio, "goal": GOALS[dtype]}
        )
        print(
            f"{dtype}: two ranks {median(together):.0f} tokens/s, two alone {median(alone):.0f}; ratio"
            f" {ratio:.3f} (goal {GOALS[dtype]})",
            flush=True,
        )
    (folder / "result.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def two_alone(folder: Path, dtype: str, steps: int, shape: tuple[int, int]) -> float:
    """Tokens/s of two one-process runs at the same time, added."""

    def one(tag: str) -> float:
        return paceline(
            folder, dtype=dtype, packing=True, steps=steps, nproc=1, warm_up=1, shape=shape, tag=tag
        ).tokens_per_second

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(one, ("-a", "-b")))


if __name__ == "__main__":
    main()
