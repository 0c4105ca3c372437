"""The demo's final report: a table of numbers, some answers side by side, and where the files are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes, human_seconds
from paceline.demo.files import Material
from paceline.demo.questions import KINDS
from paceline.runlog.eventlog import read_events
from paceline.runlog.events import Step

GOAL = 0.90
SHOWN = 9
SHORT = 14  # maximum characters of an answer in the table


def read_answers(run: RunDir) -> list[dict[str, Any]]:
    """Return ``[{step, exact_match, rows}]``; the first is before training, the last after."""
    data: list[dict[str, Any]] = json.loads(run.answers_json.read_text(encoding="utf-8"))
    return data


def share(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], kind: str | None) -> str:
    """Return exact match of one kind (None: all) as ``97.5 %``."""
    chosen = [bool(row["correct"]) for row, k in zip(rows, kinds, strict=True) if kind in (None, k)]
    return f"{100 * sum(chosen) / max(1, len(chosen)):.1f} %"


def show(console: Console, run: RunDir, material: Material, seconds: Mapping[str, float]) -> float:
    """Print everything; return exact match after training."""
    answers = read_answers(run)
    kinds = [q.kind for q in material.questions]
    before, after = answers[0], answers[-1]
    console.print(numbers_table(before, after, kinds))
    console.print(answers_table(before["rows"], after["rows"]))
    console.print(
        "Exact match during training:  " + "  ".join(f"{a['step']}: {a['exact_match']:.0%}" for a in answers),
        highlight=False,
    )
    console.print(speed_line(run, seconds), highlight=False)
    return float(after["exact_match"])


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
    chosen = list(range(min(SHOWN, len(after))))
    wrong = next((i for i, row in enumerate(after) if not row["correct"] and i not in chosen), None)
    table = Table(title="Some answers, side by side", title_justify="left")
    for column in ("question", "expected", "before", "after", ""):
        table.add_column(column, overflow="fold")
    for i in [*chosen, *([wrong] if wrong is not None else [])]:
        row = after[i]
        mark = "[green]right[/green]" if row["correct"] else "[red]wrong[/red]"
        table.add_row(
            *(
                plain(t)
                for t in (row["prompt"], row["expected"], short(before[i]["answer"]), short(row["answer"]))
            ),
            mark,
        )
    return table


def plain(text: str) -> str:
    """Escape text of a model for the terminal and rich's markup."""
    return "".join(c if c.isprintable() else "·" for c in text).replace("[", "\\[")


def short(text: str) -> str:
    """Return the beginning of an answer: an untrained model does not know when to stop."""
    text = text.strip()
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def speed_line(run: RunDir, seconds: Mapping[str, float]) -> str:
    """Return throughput, memory and the times of the steps."""
    steps = [r.event for r in read_events(run.events(0)) if isinstance(r.event, Step)]
    parts = [f"{name} {human_seconds(value)}" for name, value in seconds.items()]
    if steps:
        rates = sorted(s.tokens_per_second for s in steps)
        memory = max(s.memory_bytes or 0 for s in steps)
        parts = [
            f"{len(steps)} steps",
            f"{rates[len(rates) // 2]:,.0f} tokens/s",
            f"{human_bytes(memory)} a process",
            *parts,
        ]
    return ", ".join(parts) + f"; {human_seconds(sum(seconds.values()))} in total"


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
