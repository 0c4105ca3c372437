"""``make moves``: runs that go on in another layout; writes docs/reference/moves.json and moves.md there.

    python tests/conformance/moves_main.py [PART ...] [--only TEXT] [--missing] [--first N] [--keep DIR]

PART: pairs, others, exact, adapters, learnt, chains (all). ``--only`` runs the moves whose name holds the
text; ``--missing`` those of which no result is stored; ``--first`` as many of each part.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import warm  # noqa: E402
from moves import PARTS, Move, Moved, Mover  # noqa: E402
from moves_table import MOVES_JSON, MOVES_MD, load, markdown  # noqa: E402
from support import write_classified, write_labelled, write_pairs, write_rows, write_tokenizer  # noqa: E402
from table import commit, versions  # noqa: E402


def main() -> int:
    """Run, write, and answer 1 when a move fails."""
    parser = argparse.ArgumentParser(prog="python tests/conformance/moves_main.py", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--only", default="")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--first", type=int, metavar="N")
    parser.add_argument("--keep", type=Path, help="leave the runs there")
    given = parser.parse_args()
    stored = load()["moves"] if MOVES_JSON.exists() else []
    done = {move["move"] for move in stored} if given.missing else set()
    chosen = [(part, move) for part in given.part or PARTS for move in PARTS[part]()[: given.first]]
    subprocess.Popen = warm.Popen  # type: ignore[misc]  # what the planner starts
    failed = 0
    with tempfile.TemporaryDirectory(prefix="paceline-moves-") as scratch:
        mover = Mover(given.keep or Path(scratch), *data_in(given.keep or Path(scratch)))
        for part, move in chosen:
            if given.only not in move.name or move.name in done:
                continue
            started = time.monotonic()
            moved = mover.move(move)
            failed += moved.result == "fails"
            seconds = time.monotonic() - started
            print(f"{moved.result:<8} {seconds:5.0f} s  {move.name}  {moved.reason[:1500]}", flush=True)
            remember(as_json(part, move, moved))
    return 1 if failed else 0


def data_in(folder: Path) -> tuple[Path, dict[str, Path]]:
    """A tokenizer, and rows by their kind."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = write_rows(folder / "train.json", 200)
    return write_tokenizer(folder / "tokenizer"), {
        "documents": rows,
        "prompts": rows,
        "pairs": write_pairs(folder / "pairs.json", 200),
        "classified": write_classified(folder / "classified.json", 200),
        "labelled": write_labelled(folder / "labelled.json", 200),
    }


def as_json(part: str, move: Move, moved: Moved) -> dict[str, Any]:
    return {
        "move": move.name,
        "part": part,
        "path": [variant.name for variant in move.path],
        "ranks": [variant.nproc for variant in move.path],
        "algorithm": move.algorithm,
        "finetuning": move.finetuning,
        "precision": move.precision,
        "result": moved.result,
        "reason": moved.reason,
        "loss": moved.loss,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def remember(result: dict[str, Any]) -> None:
    """moves.json with this result in its place, and the page made from it; another process may be doing the
    same.
    """
    with FileLock(f"{MOVES_JSON}.lock"):
        results = {m["move"]: m for m in load()["moves"]} if MOVES_JSON.exists() else {}
        results[str(result["move"])] = result
        named = [move.name for part in PARTS.values() for move in part()]
        moves = {
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "moves": [results[name] for name in named if name in results],
        }
        MOVES_JSON.write_text(json.dumps(moves, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        MOVES_MD.write_text(markdown(moves), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
