"""``make conformance``: runs the support matrix; writes docs/reference/support.json and support.md there.

    python tests/conformance [--only TEXT] [--exact | --matrix | --preferences | --rollouts | --taught
    | --layers] [--part K/N] [--keep DIR]

``--only`` runs the cells whose name holds the text and leaves the others' results as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from cells import PARTS, STEPS, Cell, every  # noqa: E402
from check import Checker, Result  # noqa: E402
from support import (  # noqa: E402
    write_classified,
    write_labelled,
    write_pairs,
    write_retrieval,
    write_rows,
    write_tokenizer,
)
from table import SUPPORT_JSON, SUPPORT_MD, commit, load, markdown, versions  # noqa: E402


def main() -> int:
    """Run, write, and answer 1 when a cell fails."""
    parser = argparse.ArgumentParser(prog="python tests/conformance", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--exact", action="store_true", help="the float64 cells alone")
    parser.add_argument("--matrix", action="store_true", help="the matrix alone")
    parser.add_argument(
        "--preferences", action="store_true", help="reward models, DPO, KTO, CPO, SimPO and ORPO alone"
    )
    parser.add_argument(
        "--rollouts", action="store_true", help="what learns from the model's own answers alone"
    )
    parser.add_argument("--taught", action="store_true", help="what labels and documents teach alone")
    parser.add_argument("--mixtures", action="store_true", help="a mixture of experts alone")
    parser.add_argument("--blooms", action="store_true", help="BLOOM in its own layout alone")
    parser.add_argument("--encoders", action="store_true", help="encoders as classifiers alone")
    parser.add_argument("--layers", action="store_true", help="torch.compile and what recomputation keeps")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="every N-th cell from the K-th on: for several machines"
    )
    parser.add_argument("--keep", type=Path, help="leave the runs there")
    given = parser.parse_args()
    named = [name for name in PARTS if getattr(given, name)] or list(PARTS)
    chosen = [cell for name in named for cell in PARTS[name]()]
    part, parts = (int(number) for number in given.part.split("/"))
    chosen = [cell for cell in chosen if given.only in cell.name][part - 1 :: parts]
    with tempfile.TemporaryDirectory(prefix="paceline-conformance-") as scratch:
        folder = given.keep or Path(scratch)
        tokenizer = write_tokenizer(folder / "tokenizer")
        rows = write_rows(folder / "train.json", 200)
        data = {"documents": rows, "prompts": rows, "pairs": write_pairs(folder / "pairs.json", 200)}
        data["classified"] = write_classified(folder / "classified.json", 200)
        data["labelled"] = write_labelled(folder / "labelled.json", 200)
        data["retrieval"] = data["ranked"] = write_retrieval(folder / "retrieval.json", 200)
        checker = Checker(folder, tokenizer, data)
        failed = 0
        for cell in chosen:
            started = time.monotonic()
            result = checker.check(cell)
            failed += result.result == "fails"
            print(
                f"{result.result:<8} {time.monotonic() - started:5.0f} s  {cell.name} "
                f" {result.reason[:1500]}",
                flush=True,
            )
            remember(as_json(cell, result))
    return 1 if failed else 0


def as_json(cell: Cell, result: Result) -> dict[str, object]:
    return {
        "cell": cell.name,
        "algorithm": cell.algorithm,
        "strategy": cell.variant.name,
        "finetuning": cell.finetuning,
        "precision": cell.precision,
        "recompute": cell.recompute,
        "result": result.result,
        "reason": result.reason,
        "measured": result.measured,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def remember(result: dict[str, object]) -> None:
    """support.json with this result in its place, and the page made from it; another process may be doing
    the same.
    """
    with FileLock(f"{SUPPORT_JSON}.lock"):
        results = {c["cell"]: c for c in load()["cells"]} if SUPPORT_JSON.exists() else {}
        results[str(result["cell"])] = result
        write([results[c.name] for c in every() if c.name in results])


def write(cells: list[dict[str, object]]) -> None:
    """Both files."""
    support = {
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "steps": STEPS,
        "cells": cells,
    }
    SUPPORT_JSON.write_text(json.dumps(support, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    SUPPORT_MD.write_text(markdown(support), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
