"""Lines of text about a run: its events, alike on the console and in the logs, and what stands around them.

A training begins with five lines and ends with the next commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.core.units import human_bytes, human_count, human_seconds
from paceline.runlog.events import (
    Answers,
    CheckpointSaved,
    Error,
    Eval,
    Event,
    Finished,
    Notice,
    RunStarted,
    Samples,
    Step,
)

# Extras that are in events and trackers but not in text lines: engine internals, details of rollouts
_UNSAID = frozenset(
    {
        "loss_scale",
        "grad_norm",
        "time",
        "ratio",
        "clip_low",
        "clip_high",
        "sampling_gap",
        "completion_length_max",
        "completion_length_min",
        "left_out",
        "zero_spread",
    }
)
_SHOWN = 160  # maximum characters of a text in a table of samples


def step_line(event: Step, total_steps: int | None = None, eta_seconds: float | None = None) -> str:
    """Return ``step 120/2000  loss 1.2345  lr 4.9e-05  …``."""
    parts = [
        f"step {event.step}" + (f"/{total_steps}" if total_steps else ""),
        f"loss {event.loss:.4f}",
        f"lr {event.lr:.3g}",
    ]
    if event.grad_norm is not None:
        parts.append(f"grad norm {event.grad_norm:.3f}")
    parts.append(f"{human_count(event.tokens_per_second)} tokens/s")
    parts += [
        metric_text(k, v)
        for k, v in event.extras.items()
        if k.partition("/")[0] not in _UNSAID and not k.startswith("reward_std/")
    ]
    if "time/rollout" in event.extras:
        parts.append(
            f"rollout {event.extras['time/rollout']:.2f}s, train {event.extras.get('time/train', 0.0):.2f}s"
        )
    parts += [" ".join(used) for used in utilisation(event)]
    if event.memory_bytes is not None:
        held = f" ({human_bytes(event.reserved_bytes)} reserved)" if event.reserved_bytes else ""
        parts.append(f"memory {human_bytes(event.memory_bytes)}{held}")
    if eta_seconds is not None:
        parts.append(f"ETA {human_seconds(eta_seconds)}")
    if event.skipped:
        parts.append(f"SKIPPED ({event.skipped})")
    return "  ".join(parts)


def utilisation(event: Step) -> list[tuple[str, str]]:
    """Return (name, value) of the device utilisation of a step, or nothing.

    A share over 1 comes with its reason.
    """
    if event.mfu is not None:
        over = (
            " (over the data sheet's peak: the clock runs faster than specified, or the step"
            " computes less than is counted)"
        )
        return [("MFU", f"{event.mfu:.0%}{over if event.mfu > 1 else ''}")]
    if event.of_product is None:
        return []
    if event.of_product > 1:
        return [("speed", "above the timed product's (the machine was busy when it was timed)")]
    return [("speed", f"{event.of_product:.0%} of a timed product")]


def is_share(name: str) -> bool:
    """Whether a metric is a fraction from 0 to 1."""
    return any(word in name for word in ("accuracy", "accuracies", "exact_match", "calibration_error"))


def metric_text(name: str, value: float) -> str:
    """Return ``eval_loss 1.2345``; accuracies, exact matches and calibration errors as percentages."""
    if is_share(name):
        return f"{name} {value:.1%}"
    if name.startswith("learning_rate/"):  # of a part of the model
        return f"lr {name.partition('/')[2]} {value:.3g}"
    return f"{name} {value:.4f}" if abs(value) < 1e4 else f"{name} {value:.4g}"


def eval_line(event: Eval) -> str:
    """Return ``evaluation at step 100: eval_loss 1.2345  eval_token_accuracy 61.0%``."""
    return f"evaluation at step {event.step}: " + "  ".join(
        metric_text(k, v) for k, v in event.metrics.items()
    )


def _started_line(event: RunStarted) -> str:
    how = f"resumed from {event.resumed_from} at step {event.start_step}" if event.resumed_from else "started"
    steps = f", {event.total_steps} steps" if event.total_steps else ""
    described = f" ({event.description})" if event.description else ""
    return (
        f"{how}: {event.world_size} process{'es' if event.world_size != 1 else ''}{steps}, plan"
        f" {event.plan_digest[:12]}{described}"
    )


def _saved_line(event: CheckpointSaved) -> str:
    waited = "" if event.waited is None else f" beside training, which waited {event.waited:.2f}s"
    return (
        f"checkpoint of step {event.step} published in {event.seconds:.1f}s{waited}"
        f" ({human_bytes(event.bytes)}): {event.path}"
    )


def _answers_line(event: Answers) -> str:
    right = sum(bool(row.get("correct")) for row in event.rows)
    return f"answers at step {event.step}: {right} of {len(event.rows)} correct"


def samples_lines(event: Samples) -> str:
    """Return a few answers with their rewards: a table if the texts are short, else one block per answer."""
    names = list(dict.fromkeys(k for row in event.rows for k in row if k.startswith("reward/")))
    names = names if len(names) > 1 else []  # one function's reward is the whole reward
    header = ["prompt", "completion", "expected", "reward", *(name.partition("/")[2] for name in names)]
    rows = [
        [*_texts(row), _score(row.get("reward")), *(_score(row.get(name)) for name in names)]
        for row in event.rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [f"samples of step {event.step}"]
    # Short texts: a table.
    if sum(widths) + 2 * len(widths) <= _SHOWN:
        table = [header, ["-" * width for width in widths], *rows]
        lines += [
            "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join(lines)
    # Long texts: a block per answer.
    for row in rows:
        parts = [f"{label} {value}" for label, value in zip(header[4:], row[4:], strict=True) if value]
        lines += [f"  {label:<10}  {text}" for label, text in zip(header[:3], row[:3], strict=True) if text]
        lines.append(f"  reward      {row[3]}" + (f"  ({', '.join(parts)})" if parts else ""))
    return "\n".join(lines)


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [_short(row.get(name)) for name in ("prompt", "completion", "answer")]


def _score(value: Any) -> str:
    """Format a reward; ``left out`` if no judge scored the answer."""
    return "skipped" if value is None else f"{value:.3g}"


def _short(value: Any) -> str:
    text = " ".join(str(value or "").split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


_RENDER: dict[type[Event], Callable[[Any], str]] = {
    RunStarted: _started_line,
    Step: step_line,
    Eval: eval_line,
    CheckpointSaved: _saved_line,
    Answers: _answers_line,
    Samples: samples_lines,
    Notice: lambda e: e.diagnostic.render(),
    Error: lambda e: f"rank {e.rank}: {e.diagnostic.render()}",
    Finished: lambda e: f"{e.outcome} at step {e.step} after {human_seconds(e.seconds)}",
}


def line_of(event: Event) -> str | None:
    """Return the event as text; None for kinds without a text form."""
    render = _RENDER.get(type(event))
    return render(event) if render else None


#: In the environment of a run's processes: print every line, as ``paceline train --verbose`` does.
VERBOSE = "PACELINE_VERBOSE"
_LABEL_WIDTH = 12
_MOST_COMMANDS = 3


def is_verbose(environ: Mapping[str, str]) -> bool:
    """Whether to print every line: the variable is set, and not to 0."""
    return environ.get(VERBOSE, "") not in ("", "0")


def overview_line(label: str, text: str) -> str:
    """Return a line of the overview before a training, or a command after it."""
    return f"{label:<{_LABEL_WIDTH}}{text}"


def short_path(path: str | Path) -> str:
    """Return ``path`` relative to the current directory if it lies inside."""
    whole, here = Path(path), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) and whole != here else str(path)


def next_commands(run: str | Path, *, resume: str = "", saved: bool = True, answers: bool = True) -> str:
    """Return at most three lines with the next commands for a run that has ended.

    - ``resume``: the command that continues a run that was stopped, which comes first
    - ``saved``: the run has a checkpoint
    - ``answers``: its model writes text, so one can chat with it
    """
    folder = shlex.quote(short_path(run))
    commands = (
        ("resume", resume),
        ("chat", f"paceline chat {folder}" if saved and answers else ""),
        ("export", f"paceline export {folder} --to DIR" if saved else ""),
        ("watch", f"paceline watch {folder}"),
        ("report", f"paceline report {folder}"),
    )
    lines = [overview_line(label, command) for label, command in commands if command]
    return "\n".join(lines[:_MOST_COMMANDS])
