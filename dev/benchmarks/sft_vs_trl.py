"""Paceline against TRL's SFTTrainer, side by side: same model, same rows, same processes; runs alternate;
ratios of medians.

    python dev/benchmarks/sft_vs_trl.py --trl-python /path/to/trlvenv/bin/python [--rounds 3] [--steps 6]
    [--quick]

See dev/benchmarks/README.md for TRL's environment. Prints a table and writes ``result.json`` into ``--to``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import workload
from measure import Measured, matmul_flops, median, mfu, paceline, trl

GOALS = {("float32", "bfd"): 1.8, ("bfloat16", "bfd"): 2.7, ("bfloat16", "off"): 5.0}
MEMORY_GOAL = 0.45
ROWS = 4000


def main() -> None:
    """All pairs, alternated."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--trl-python", required=True, help="the interpreter of an environment with trl==1.16.0"
    )
    parser.add_argument("--to", type=Path, default=Path("outputs/benchmark"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps a run, the first not counted")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument(
        "--pairs", nargs="*", default=["float32:bfd", "bfloat16:bfd", "bfloat16:off"], metavar="DTYPE:PACKING"
    )
    parser.add_argument("--model", choices=workload.MODELS, default="llama")
    parser.add_argument("--quick", action="store_true", help="one round of two steps: does it run at all")
    options = parser.parse_args()
    rounds, steps = (1, 2) if options.quick else (options.rounds, options.steps)
    folder = options.to.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    workload.write_tokenizer(folder / "tokenizer")
    workload.write_text_rows(folder / "rows.jsonl", workload.rows(ROWS))
    shape = (options.micro_batch, options.accumulation)
    report = []
    for pair in options.pairs:
        dtype, packing = pair.split(":")
        ours: list[Measured] = []
        theirs: list[Measured] = []
        for _ in range(rounds):
            theirs.append(
                trl(
                    options.trl_python,
                    folder,
                    dtype=dtype,
                    packing=packing,
                    rows=ROWS,
                    steps=steps,
                    nproc=options.nproc,
                    warm_up=1,
                    shape=shape,
                    model=options.model,
                )
            )
            ours.append(
                paceline(
                    folder,
                    dtype=dtype,
                    packing=True,
                    steps=steps,
                    nproc=options.nproc,
                    warm_up=1,
                    shape=shape,
                    model=options.model,
                )
            )
        report.append(summary(dtype, packing, ours, theirs, options.nproc))
        if options.model != "llama":  # whose products alone are counted
            del report[-1]["mfu"]
        print_summary(report[-1])
    (folder / "result.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def summary(
    dtype: str, packing: str, ours: list[Measured], theirs: list[Measured], nproc: int
) -> dict[str, object]:
    """Medians and their ratios."""
    speed = median([m.tokens_per_second for m in ours]), median([m.tokens_per_second for m in theirs])
    memory = median([m.peak_bytes for m in ours]), median([m.peak_bytes for m in theirs])
    first = median([m.first_step_seconds for m in ours]), median([m.first_step_seconds for m in theirs])
    return {
        "dtype": dtype,
        "trl_packing": packing,
        "tokens_per_second": {
            "paceline": speed[0],
            "trl": speed[1],
            "ratio": speed[0] / speed[1],
            "goal": GOALS.get((dtype, packing)),
        },
        "peak_bytes": {
            "paceline": memory[0],
            "trl": memory[1],
            "ratio": memory[0] / memory[1],
            "goal": MEMORY_GOAL,
        },
        "launch_to_first_step_seconds": {"paceline": first[0], "trl": first[1]},
        "mfu": mfu(speed[0], matmul_flops(dtype), nproc),
        "runs": {"paceline": [vars(m) for m in ours], "trl": [vars(m) for m in theirs]},
    }


def print_summary(found: dict[str, object]) -> None:
    """A few lines for people."""
    print(f"\n{found['dtype']}, TRL packing {found['trl_packing']}", flush=True)
    for key, unit, scale in (
        ("tokens_per_second", "tokens/s", 1.0),
        ("peak_bytes", "GB a rank", 1e-9),
        ("launch_to_first_step_seconds", "s to the first step", 1.0),
    ):
        value = found[key]
        assert isinstance(value, dict)
        ratio = f"  ratio {value['ratio']:.2f} (goal {value['goal']})" if "ratio" in value else ""
        print(
            f"  Paceline {value['paceline'] * scale:8.2f}   TRL {value['trl'] * scale:8.2f}  {unit}{ratio}",
            flush=True,
        )
    if "mfu" in found:
        print(f"  MFU {found['mfu']:.0%}", flush=True)


if __name__ == "__main__":
    main()
