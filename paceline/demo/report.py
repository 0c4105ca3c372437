"""A demo's final report: numbers with their goals, some answers side by side, and where the files are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes, human_seconds
from paceline.demo.files import Material
from paceline.demo.questions import KINDS
from paceline.runlog.events import Step, read_events

GOAL = 0.90  # exact match on the held-out questions that the SFT demo must reach
SHOWN = 9  # three of each kind
SHORT = 14  # maximum characters of an answer in the table


def read_answers(run: RunDir) -> list[dict[str, Any]]:
    """Return ``[{step, exact_match, rows}]``; the first is before training, the last after."""
    data: list[dict[str, Any]] = json.loads(run.answers_json.read_text(encoding="utf-8"))
    return data


def percent(share: float) -> str:
    """Return ``97.5 %``."""
    return f"{100 * share:.1f} %"


def share(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], kind: str | None) -> str:
    """Return exact match of one kind (None: all) as ``97.5 %``."""
    chosen = [bool(row["correct"]) for row, k in zip(rows, kinds, strict=True) if kind in (None, k)]
    return percent(sum(chosen) / max(1, len(chosen)))


def show_answers(console: Console, answers: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    """Print exact match before and after training by kind, some answers, and exact match in between."""
    before, after = answers[0], answers[-1]
    console.print(numbers_table(before, after, kinds))
    console.print(answers_table(before["rows"], after["rows"]))
    way = "  ".join(f"{a['step']}: {a['exact_match']:.0%}" for a in answers)
    console.print(f"Exact match during training:  {way}", highlight=False)


def numbers_table(before: Mapping[str, Any], after: Mapping[str, Any], kinds: Sequence[str]) -> Table:
    """Return exact match by kind of question, before and after training."""
    table = Table(title=f"Exact match on {len(kinds)} held-out questions", title_justify="left")
    for column in ("question", "before", "after"):
        table.add_column(column, justify="left" if column == "question" else "right")
    for kind in KINDS:
        table.add_row(kind, share(before["rows"], kinds, kind), share(after["rows"], kinds, kind))
    table.add_section()
    table.add_row("all", share(before["rows"], kinds, None), share(after["rows"], kinds, None), style="bold")
    return table


def answers_table(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Table:
    """Return the first questions (on real words) and, if there is one, a question still answered wrongly."""
    chosen = range(min(SHOWN, len(after)))
    wrong = [i for i, row in enumerate(after) if not row["correct"] and i not in chosen][:1]
    table = Table(title="Some answers, side by side", title_justify="left")
    for column in ("question", "expected", "before", "after", ""):
        table.add_column(column, overflow="fold")
    for i in (*chosen, *wrong):
        row = after[i]
        mark = "[green]right[/green]" if row["correct"] else "[red]wrong[/red]"
        texts = (row["prompt"], row["expected"], short(before[i]["answer"]), short(row["answer"]))
        table.add_row(*map(plain, texts), mark)
    return table


def plain(text: str) -> str:
    """Escape text of a model for the terminal and rich's markup."""
    return "".join(c if c.isprintable() else "·" for c in text).replace("[", "\\[")


def short(text: str) -> str:
    """Return the beginning of an answer: an untrained model does not know when to stop."""
    text = text.strip()
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def times(seconds: Mapping[str, float]) -> str:
    """Return the times of a demo's steps, and their sum."""
    parts = ", ".join(f"{name} {human_seconds(value)}" for name, value in seconds.items())
    return f"{parts}; {human_seconds(sum(seconds.values()))} in total"


def speed(run: RunDir) -> str:
    """Return the number of steps, throughput and memory; empty without steps."""
    steps = [record.event for record in read_events(run.events(0)) if isinstance(record.event, Step)]
    if not steps:
        return ""
    rates = sorted(step.tokens_per_second for step in steps)
    memory = max(step.memory_bytes or 0 for step in steps)
    return f"{len(steps)} steps, {rates[len(rates) // 2]:,.0f} tokens/s, {human_bytes(memory)} a process, "


def where_and_next(console: Console, run: RunDir, material: Material) -> None:
    """Print where the files are, and what to try next."""
    here = shown(run.root)
    lines = [
        "",
        "[bold]Where everything is[/bold]",
        f"  plot         {shown(run.plot_png)}",
        f"  answers      {shown(run.answers_json)}",
        f"  checkpoints  {shown(run.checkpoints)}",
        f"  events       {shown(run.events(0))}",
        f"  log          {shown(run.training_log)}",
        f"  data, tokenizer, config  {shown(material.root)}",
        "",
        "[bold]What to try next[/bold]",
        f"  paceline chat {here} --prompt \"Spell 'tiger' backwards.\"",
        f"  paceline export {here} --to exported-demo",
        f"  paceline plot {here}",
        (
            f"  paceline train {shown(material.yaml)} training.output_dir=outputs/mine"
            " training.learning_rate=1e-3 --nproc 2"
        ),
        f"  tensorboard --logdir {shown(run.tensorboard)}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def shown(path: Path) -> str:
    """Return a path relative to the working directory if it is inside it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


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


def write_numbers(
    path: Path, algorithm: str, numbers: Sequence[Number], seconds: Mapping[str, float]
) -> None:
    """Write ``{algorithm, numbers: [{name, before, after, goal, reached}], seconds: {…}}``."""
    rows = [{**asdict(n), "reached": n.reached} for n in numbers]
    data = {"algorithm": algorithm, "numbers": rows, "seconds": {k: round(v, 1) for k, v in seconds.items()}}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verdict(console: Console, numbers: Sequence[Number], *, shortened: bool) -> int:
    """Return the exit code: 0 if every goal was reached, or if the demo was too short for them."""
    missed = [number for number in numbers if not number.reached]
    if not missed:
        console.print("\n[bold green]Every goal was reached.[/bold green]")
        return int(ExitCode.OK)
    words = "; ".join(f"{m.name} {percent(m.after)}, {percent(m.goal or 0.0)} expected" for m in missed)
    if shortened:
        console.print(f"\nFewer steps than needed to reach the goal: {words}.", highlight=False)
        return int(ExitCode.OK)
    print(f"The demo did not reach its goal: {words}.", file=sys.stderr)
    return int(ExitCode.FAILED)
