"""How well the planner predicts: fits its coefficients on published measurements and writes
``docs/explanation/planner_accuracy.md``.

    python dev/research/planner_accuracy.py CALIBRATION.jsonl    fit, cross-validate, write coefficients
    and report python dev/research/planner_accuracy.py --judge ROWS.jsonl    only judge the shipped
    coefficients on other rows

Cross-validation leaves out one cell (a model on a number of cards) or some models of the other
groups at a time, fits on all other rows and predicts
the rows left out, so that no row is judged by coefficients that have seen it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from planner_fit import (
    MEMORY_MOVES,
    SPEED_MOVES,
    Sets,
    fit_memory,
    fit_speed,
    predicted_memory,
    predicted_speed,
    quantile,
)
from planner_rows import Row, read
from planner_score import ENOUGH, FITS, MARGIN, Figures, Pick, by, fits, picks

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "paceline" / "plan" / "data" / "coefficients.json"
REPORT = ROOT / "docs/explanation/planner_accuracy.md"
FOLDS_OF_A_GROUP = 8
ROUNDS = (
    # of the descent, in the folds and for what is shipped: two more fit the noise (memory's 90th percentile
    # grows)
    5
)


class Judged:
    """Every row with what was predicted of it."""

    def __init__(self) -> None:
        self.memory: list[tuple[Row, float]] = []
        self.speed: list[tuple[Row, float]] = []
        self.fits: list[tuple[Row, bool]] = []
        self.picks: list[Pick] = []

    def add(self, rows: Sequence[Row], memory: Sets, speed: Sets) -> None:
        """Predict ``rows`` by these coefficients."""
        self.memory += [(row, predicted_memory(row, memory)) for row in rows if row.memory]
        self.speed += [(row, predicted_speed(row, speed)) for row in rows if row.speed]
        self.fits += [(row, fits(row, memory)) for row in rows]
        self.picks += picks(rows, memory, speed)


def folds(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows to leave out together: the sweep's cells, and each other group cut into
    ``FOLDS_OF_A_GROUP`` by its models.
    """
    cells = by(rows, lambda row: row.cell)
    large = [
        listed for listed in cells.values() if len(listed) >= ENOUGH and any(not row.ran for row in listed)
    ]
    taken = {row.id for listed in large for row in listed}
    parts: list[list[Row]] = [[] for _ in range(FOLDS_OF_A_GROUP)]
    rest = [row for row in rows if row.id not in taken]
    for listed in by(rest, lambda row: row.group).values():
        for number, model in enumerate(by(listed, lambda row: row.cell).values()):
            parts[number % FOLDS_OF_A_GROUP] += model
    return [*large, *(part for part in parts if part)]


def cross_validated(rows: Sequence[Row]) -> Judged:
    judged = Judged()
    for left_out in folds(rows):
        gone = {row.id for row in left_out}
        others = [row for row in rows if row.id not in gone]
        judged.add(left_out, fit_memory(others, ROUNDS), fit_speed(others, ROUNDS))
        print(f"left out {len(left_out)} rows ({left_out[0].cell} …)", file=sys.stderr, flush=True)
    return judged


def report(judged: Judged, title: str) -> list[str]:
    """Markdown: the figures that are asked for, then what bounds them."""
    full = [(row, p) for row, p in judged.memory if row.tuning == "full"]
    adapters = [(row, p) for row, p in judged.memory if row.tuning != "full" and row.work.world == 1]
    m, a = _figures(full, "memory"), _figures(adapters, "memory")
    s = _figures(judged.speed, "speed")
    right = sum(said == row.ran for row, said in judged.fits) / max(1, len(judged.fits))
    regrets = [pick.regret for pick in judged.picks if pick.regret is not None]
    failing = sum(pick.regret is None for pick in judged.picks)
    mean = sum(regrets) / max(1, len(regrets))
    lines = [f"## {title}", "", "| what | rows | reached | asked for |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| memory, median absolute error | {m.rows} | {m.median:.1%} | ≤ 8 % |",
        f"| memory, 90th percentile | {m.rows} | {m.p90:.1%} | ≤ 25 % |",
        f"| memory, underestimated by more than 10 % | {m.rows} | {m.under:.1%} | < 5 % |",
        f"| said rightly whether it fits | {len(judged.fits)} | {right:.1%} | ≥ 92 % |",
        f"| throughput, median absolute error | {s.rows} | {s.median:.1%} | ≤ 15 % |",
        f"| throughput, 90th percentile | {s.rows} | {s.p90:.1%} | |",
        f"| choice in a cell, mean regret | {len(judged.picks)} | {mean:.1%} | ≤ 10 % |",
        f"| choice in a cell, picks that failed | {len(judged.picks)} | {failing} | 0 |",
        f"| LoRA and QLoRA on one card, memory, median | {a.rows} | {a.median:.1%} | ≤ 10 % |",
        f"| LoRA and QLoRA on one card, memory, 90th percentile | {a.rows} | {a.p90:.1%} | |",
        "",
    ]
    lines += _groups("Memory by source", judged.memory, "memory")
    lines += _groups("Throughput by source", judged.speed, "speed")
    lines += [
        "### The choice in each cell",
        "",
        "| cell | chosen | tokens/s a card, predicted | measured | best measured | regret |",
    ]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: |"]
    for pick in judged.picks:
        got = "failed" if pick.measured is None else f"{pick.measured:,.0f}"
        lost = "" if pick.regret is None else f"{pick.regret:.1%}"
        lines.append(
            f"| {pick.cell} | {pick.layout} | {pick.predicted:,.0f} | {got} | {pick.best:,.0f} | {lost} |"
        )
    return [*lines, ""]


def _groups(title: str, pairs: Sequence[tuple[Row, float]], kind: str) -> list[str]:
    predicted = {row.id: p for row, p in pairs}
    lines = [
        f"### {title}",
        "",
        "| source | tuning | rows | median | 90th percentile | bias | under by > 10 % |",
    ]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, listed in by([row for row, _ in pairs], lambda row: f"{row.group} | {row.tuning}").items():
        f = _figures([(row, predicted[row.id]) for row in listed], kind)
        lines.append(f"| {name} | {f.rows} | {f.median:.1%} | {f.p90:.1%} | {f.bias:+.1%} | {f.under:.0%} |")
    return [*lines, ""]


def _figures(pairs: Sequence[tuple[Row, float]], kind: str) -> Figures:
    return Figures.of(p / float(getattr(row, kind)) - 1 for row, p in pairs)


def _spread(pairs: Sequence[tuple[Row, float]], kind: str) -> list[float]:
    ratios = [float(getattr(row, kind)) / p for row, p in pairs]
    return [round(quantile(ratios, 0.1), 3), round(quantile(ratios, 0.9), 3)] if ratios else [0.8, 1.25]


def coefficients(memory: Sets, speed: Sets, judged: Judged) -> dict[str, object]:
    """What is shipped: every set by its difference from the default, and the spread of measured over
    predicted.
    """

    def small(sets: Sets, moves: dict[str, tuple[str, ...]]) -> dict[str, dict[str, float]]:
        default = {name: round(value, 4) for name, value in sets["default"].items()}
        others = {
            system: {name: round(value, 4) for name, value in c.items() if round(value, 4) != default[name]}
            for system, c in sets.items()
            if system != "default"
        }
        return {"default": default, **others}

    return {
        "note": "fitted by dev/research/planner_accuracy.py; meanings in docs/explanation/planner.md",
        "fits": FITS,
        "margin": MARGIN,
        "memory": small(memory, MEMORY_MOVES),
        "speed": small(speed, SPEED_MOVES),
        "spread": {
            "memory": _spread([(r, p) for r, p in judged.memory if r.tuning == "full"], "memory"),
            "adapter": _spread([(r, p) for r, p in judged.memory if r.tuning != "full"], "memory"),
            "speed": _spread(judged.speed, "speed"),
        },
    }


def shipped() -> tuple[Sets, Sets]:
    data = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return data["memory"], data["speed"]


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--judge":
        judged = Judged()
        judged.add(read(Path(arguments[1])), *shipped())
        print("\n".join(report(judged, f"The shipped coefficients on {Path(arguments[1]).name}")))
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    rows = read(Path(arguments[0]))
    judged = cross_validated(rows)
    memory, speed = fit_memory(rows, ROUNDS), fit_speed(rows, ROUNDS)
    SHIPPED.write_text(json.dumps(coefficients(memory, speed, judged), indent=1) + "\n", encoding="utf-8")
    seen = Judged()
    seen.add(rows, memory, speed)
    text = (ROOT / "dev" / "research" / "planner_accuracy_head.md").read_text(encoding="utf-8")
    body = [*report(judged, "Cross-validated"), *report(seen, "On the rows that were fitted (optimistic)")]
    REPORT.write_text(text + "\n".join(body), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
