"""Numbers before and after training with their goals: as a table, as JSON, and as the demo's exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.core.errors import ExitCode


@dataclass(frozen=True)
class Number:
    """One share, from 0 to 1, before and after training.

    ``before``: None if there is nothing to compare; ``goal``: the value to reach (None: for information
    only).
    """

    name: str
    before: float | None
    after: float
    goal: float | None = None

    @property
    def reached(self) -> bool:
        return self.goal is None or self.after >= self.goal - 1e-9


def table_of(numbers: Sequence[Number]) -> Table:
    """Return the table for the terminal."""
    table = Table(title="Before and after", title_justify="left")
    for column in ("", "before", "after", "goal", ""):
        table.add_column(column, justify="right" if column else "left")
    for n in numbers:
        mark = "" if n.goal is None else "[green]reached[/green]" if n.reached else "[red]missed[/red]"
        goal = "" if n.goal is None else f"≥ {percent(n.goal)}"
        table.add_row(n.name, "–" if n.before is None else percent(n.before), percent(n.after), goal, mark)
    return table


def percent(share: float) -> str:
    """Return ``97.5 %``."""
    return f"{100 * share:.1f} %"


def write_numbers(
    path: Path, algorithm: str, numbers: Sequence[Number], seconds: Mapping[str, float]
) -> None:
    """Write ``{algorithm, numbers: [{name, before, after, goal, reached}], seconds: {…}}``."""
    rows = [{**asdict(n), "reached": n.reached} for n in numbers]
    data = {"algorithm": algorithm, "numbers": rows, "seconds": {k: round(v, 1) for k, v in seconds.items()}}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verdict(console: Console, numbers: Sequence[Number], *, shortened: bool) -> int:
    """Return the exit code: 0 if every goal was reached, or if the demo was too short for them."""
    missed = [n for n in numbers if not n.reached]
    if not missed:
        console.print("\n[bold green]Every goal was reached.[/bold green]")
        return int(ExitCode.OK)
    words = "; ".join(f"{n.name} {percent(n.after)}, {percent(n.goal or 0.0)} expected" for n in missed)
    if shortened:
        console.print(f"\nFewer steps than needed to reach the goal: {words}.", highlight=False)
        return int(ExitCode.OK)
    print(f"The demo did not reach its goal: {words}.", file=sys.stderr)
    return int(ExitCode.FAILED)
