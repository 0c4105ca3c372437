"""What a strategy costs beyond its engine: Paceline's step against the same engine driven by Accelerate (ddp,
fsdp) or bare DeepSpeed (ZeRO).

    python dev/benchmarks/strategies.py [--only ddp fsdp zero1 zero2 zero3] [--pairs 7] [--quick]

Both sides train the same module on the same batches in the same two processes, one optimizer step each in
turn. What counts is CPU time of a step (all threads of a rank, so that other work on the machine does not),
the worst rank's; ratios of pairs, then their median.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from measure import ROOT, environment, median, run

SIDES = {
    "ddp": "Accelerate, DDP",
    "fsdp": "Accelerate, FSDP2",
    "zero1": "DeepSpeed, stage 1",
    "zero2": "DeepSpeed, stage 2",
    "zero3": "DeepSpeed, stage 3",
}
GOAL = 1.10


def main() -> None:
    """Every pair, one launch each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=Path("outputs/benchmark-strategies"))
    parser.add_argument("--only", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two pairs: does it run at all")
    options = parser.parse_args()
    folder = options.to.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    report = []
    for name in options.only:
        found = measure(name, 2 if options.quick else options.pairs, folder)
        report.append(found)
        print(
            f"{name:<6} {found['ours']:.3f} s CPU a step, {SIDES[name]} {found['theirs']:.3f} s; ratio"
            f" {found['ratio']:.3f} (at most {GOAL}), of single pairs {min(found['ratios']):.2f} to"
            f" {max(found['ratios']):.2f}; last losses {found['losses'][0]:.6f} and {found['losses'][1]:.6f}",
            flush=True,
        )
    (folder / "result.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def measure(name: str, pairs: int, folder: Path) -> dict[str, object]:
    """One strategy: medians of both sides and of the ratios of pairs."""
    out = folder / name
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    argv += [str(ROOT / "dev" / "benchmarks" / "strategies_side.py"), name, str(pairs), str(out)]
    run(argv, folder / f"{name}.log", environment(DS_ACCELERATOR="cpu"))
    ranks = [json.loads(out.with_suffix(f".{rank}.json").read_text()) for rank in range(2)]
    ours, theirs = ([max(r[side][i] for r in ranks) for i in range(pairs)] for side in ("ours", "theirs"))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "strategy": name,
        "against": SIDES[name],
        "ours": median(ours),
        "theirs": median(theirs),
        "ratio": median(ratios),
        "ratios": ratios,
        "losses": ranks[0]["losses"],
    }


if __name__ == "__main__":
    main()
