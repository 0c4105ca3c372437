"""How well the planner predicts: fits its coefficients on published measurements and writes
``docs/explanation/planner_accuracy.md``.

    python dev/research/planner_accuracy.py ROWS.jsonl...            leave each publisher out, fit, write
    python dev/research/planner_accuracy.py --judge ROWS.jsonl...    the shipped coefficients on other rows

Each publisher is left out whole and predicted by the others' coefficients; the sweep's cluster is fitted on
at most 128 cards and predicted above. What is then shipped uses all rows.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from planner_fit import DEFAULT, SWEEP, Coefficients, Sets, fit_fabric, fit_memory, fit_speed
from planner_own import own_lines
from planner_rows import Row, in_sweep, publisher, publisher_of, read, unusable, usable
from planner_score import FITS, MARGIN, SHIPPED, shipped
from planner_strata import (
    BARE,
    FITTED_CARDS,
    MEMORY_PART,
    MOST_GAIN,
    SPEED_PART,
    Guess,
    Summary,
    band_of,
    banded,
    calibrated,
    cards,
    counted_wrong,
    grouped,
    guesses_of_memory,
    guesses_of_speed,
    main_table,
    strategy,
    sweep_table,
)

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs/explanation/planner_accuracy.md"
USABLE = ROOT / "dev/research/planner_usable.txt"
HEAD = ROOT / "dev/research/planner_accuracy_head.md"


def left_out(rows: Sequence[Row], memory: Coefficients | None) -> tuple[list[Guess], Sets]:
    """Every row predicted by coefficients that have seen no row of its publisher, and these. ``memory``:
    where memory's fit starts; None: speed.
    """
    found: list[Guess] = []
    fitted: Sets = {}
    rows = [row for row in rows if (row.speed if memory is None else row.memory)]
    for name in sorted({publisher(row) for row in rows}):
        rest = [row for row in rows if publisher(row) != name]
        own = [row for row in rows if publisher(row) == name]
        if memory is None:
            fitted[name] = fit_speed(rest)
            found += guesses_of_speed(own, {DEFAULT: fitted[name]})
        else:
            fitted[name] = fit_memory(rest, memory)
            found += guesses_of_memory(own, {DEFAULT: fitted[name]})
    return found, fitted


def tables(memory: Sequence[Guess], speed: Sequence[Guess], sets: Sets) -> list[str]:
    """The publishers' stratum: the figures, then by cards, strategy and publisher. ``sets``: the speed
    coefficients of each publisher's guesses.
    """
    memory = banded(memory, MEMORY_PART)
    speed = banded(speed, SPEED_PART, lambda name: sets[name]["low_precision"])
    lines = main_table(memory, speed)
    for key in (cards, strategy, publisher):
        lines += [*grouped(memory, "memory", key), *grouped(speed, "speed", key)]
    return lines


def small(c: Coefficients) -> Coefficients:
    return {name: float(f"{value:.4g}") for name, value in c.items()}


def written(memory: Sets, speed: Sets, guesses: tuple[Sequence[Guess], Sequence[Guess]]) -> None:
    """Write the shipped file."""
    of_memory, of_speed = guesses
    low, high = band_of(of_speed, SPEED_PART)
    spread = {
        "memory": band_of(of_memory, MEMORY_PART),
        "speed": (low, high),
        "low_precision": (low, round(high * MOST_GAIN / speed[DEFAULT]["low_precision"], 3)),
    }
    data = {
        "note": "by dev/research/planner_accuracy.py; meanings in docs/explanation/planner.md",
        "fits": FITS,
        "margin": MARGIN,
        "memory": {DEFAULT: memory[DEFAULT], SWEEP: memory[SWEEP]},
        "speed": {name: small(c) for name, c in speed.items()},
        "spread": spread,
    }
    SHIPPED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    judging, paths = arguments[:1] == ["--judge"], [a for a in arguments if a != "--judge"]
    if not paths:
        print(__doc__)
        return 2
    rows = [row for path in paths for row in read(Path(path))]
    publishers, sweep = [r for r in rows if not in_sweep(r)], [r for r in rows if in_sweep(r)]
    memory, speed, _ = shipped()
    if judging:
        of_memory = guesses_of_memory(publishers, {DEFAULT: memory[DEFAULT]})
        same = {publisher(row): speed[DEFAULT] for row in publishers}
        lines = tables(of_memory, guesses_of_speed(publishers, {DEFAULT: speed[DEFAULT]}), same)
        print("\n".join([*lines, "", *sweep_table(sweep, memory, speed)]))
        return 0
    # Memory's shipped set was fitted on none of these publishers but torchtitan; a refit was worse
    # (planner_variants.md).
    of_memory = guesses_of_memory(publishers, {DEFAULT: memory[DEFAULT]})
    of_speed, apart = left_out(publishers, None)
    pooled = fit_speed(publishers)
    near = fit_fabric([row for row in sweep if row.work.world <= FITTED_CARDS], pooled)
    body = [
        "## All publishers but the sweep, each left out whole",
        "",
        *tables(of_memory, of_speed, apart),
        "",
    ]
    few = fit_speed([row for row in publishers if row.work.world <= FITTED_CARDS])
    far = guesses_of_speed(
        [row for row in publishers if row.work.world > 2 * FITTED_CARDS - 1], {DEFAULT: few}
    )
    body += ["Other questions of the same rows:", "", *BARE]
    body += [Summary.of(far).line("speed, 256 cards and more, fitted on at most 128 of all", band=False)]
    body += [Summary.of(calibrated(of_memory)).line("memory, after three of a publisher's runs", band=False)]
    body += [
        Summary.of(calibrated(of_speed)).line("speed, after three of a publisher's runs", band=False),
        "",
    ]
    lacking, lost = Counter[str](), (Counter[str](), Counter[str]())
    for path in paths:
        for (group, memory_told), count in unusable(Path(path)).items():
            lacking[group] += count
            lost[memory_told][publisher_of(group)] += count
    body[-1:] = [counted_wrong(of_memory, lost[True], "memory, with rows that cannot be used, as wrong")]
    body += [counted_wrong(of_speed, lost[False], "speed, with rows that cannot be used, as wrong"), ""]
    named = ", ".join(f"{group} {count}" for group, count in sorted(lacking.items()))
    body += [
        f"Measured rows that say too little to be predicted, and count as wrong: {sum(lacking.values())}",
        "",
    ]
    body += [f"of {sum(lacking.values()) + len(rows)} ({named}).", ""]
    body += ["Refitted with each publisher left out, and so not shipped, memory is worse:", ""]
    body += [*BARE, Summary.of(left_out(publishers, memory[DEFAULT])[0]).line("memory", band=False), ""]
    body += ["## The sweep, its cluster's fabric fitted on at most 128 cards", ""]
    body += [*sweep_table(sweep, memory, {DEFAULT: pooled, SWEEP: near}), ""]
    body += ["## The sweep by the default set, as a user of another cluster meets it", ""]
    body += [*sweep_table(sweep, {DEFAULT: memory[DEFAULT]}, {DEFAULT: pooled}), ""]
    written(memory, {DEFAULT: pooled, SWEEP: fit_fabric(sweep, pooled)}, (of_memory, of_speed))
    USABLE.write_text("\n".join(usable(rows)) + "\n", encoding="utf-8")
    head = HEAD.read_text(encoding="utf-8")
    REPORT.write_text("\n".join([head, *own_lines(), "", *body]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
