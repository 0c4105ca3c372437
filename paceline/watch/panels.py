"""The third column of a run's plot, by algorithm.

Preference training: calibration and margins. On-policy training: rewards, and the time spent per phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runlog.events import Eval
from paceline.runlog.history import History
from paceline.watch.axes import (
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    metric,
    percents,
    raw_and_mean,
    say_if_empty,
    title,
)
from paceline.watch.curves import Curve, running_mean

_MARGINS = ("margin", "rewards/margins")
_PHASES = (("sync", PURPLE), ("generate", BLUE), ("score", ORANGE), ("ask", RED), ("train", GREEN))


@dataclass(frozen=True)
class Panel:
    """One panel; ``by_step``: whether its x axis counts steps."""

    draw: Callable[[Any, History], None]
    by_step: bool = True


def panels_of(history: History) -> Sequence[Panel]:
    """Return the two algorithm-specific panels of a run; none for supervised training."""
    names = {name for e in history.steps.values() for name in e.extras}
    if names & set(_MARGINS):
        binned = any(e.bins for e in history.evals.values())
        return (
            (Panel(reliability, by_step=False), Panel(margins))
            if binned
            else (Panel(margins), Panel(likelihoods))
        )
    return (Panel(rewards), Panel(phases)) if "reward" in names else ()


def reliability(ax: Any, history: History) -> None:
    """Draw the reliability diagram of a reward model's last evaluation: accuracy over confidence per bin.

    The Bradley-Terry confidence of a pair is σ(|r_chosen - r_rejected|), at least 0.5 (Guo et al. 2017,
    arXiv:1706.04599, figure 1). A marker's area grows with its bin's share of the pairs.
    """
    title(ax, "Calibration on held-out pairs")
    last = next(e for _, e in sorted(history.evals.items(), reverse=True) if e.bins)
    rows = bin_rows(last)
    ax.plot([0.5, 1], [0.5, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label="perfectly calibrated")
    sure, right = [r[1] for r in rows], [r[2] for r in rows]
    ax.vlines(sure, sure, right, color=RED, linewidth=2, alpha=0.5, label="gap")
    ax.plot(sure, right, color=BLUE, linewidth=1.2, alpha=0.6)
    ax.scatter(sure, right, s=[30 + 600 * r[0] for r in rows], color=BLUE, alpha=0.85, zorder=3, linewidths=0)
    for share, x, y in rows:
        if share >= 0.03:
            ax.annotate(
                f"{share:.0%}",
                (x, y),
                xytext=(0, -15),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
    error = last.metrics.get("eval_calibration_error")
    label = "" if error is None else f"step {last.step}, error {error:.1%}"
    ax.set_title(label, loc="right", fontsize=9, color=QUIET)
    ax.set_xlim(0.48, 1.02)
    ax.set_ylim(min(0.45, *right) - 0.05, 1.04)
    ax.set_xlabel("confidence", fontsize=9, color=QUIET)
    ax.set_ylabel("ranked correctly", fontsize=9, color=QUIET)
    percents(ax)
    percents(ax, "x")


def bin_rows(event: Eval) -> list[tuple[float, float, float]]:
    """Return (share of pairs, mean confidence, accuracy) of each bin, in ascending order of confidence."""
    ks = sorted({int(name.partition("/")[0]) for name in event.bins})
    return [(event.bins[f"{k}/share"], event.bins[f"{k}/confidence"], event.bins[f"{k}/correct"]) for k in ks]


def margins(ax: Any, history: History) -> None:
    """Draw the margin of chosen over rejected answers."""
    title(ax, "Margin, chosen over rejected")
    name = next(n for n in _MARGINS if any(n in e.extras for e in history.steps.values()))
    raw_and_mean(
        ax, Curve.of({s: metric(e.extras, name) for s, e in history.steps.items()}), BLUE, "training"
    )
    held_out = Curve.of({s: metric(e.metrics, f"eval_{name}") for s, e in history.evals.items()})
    if held_out:
        ax.plot(held_out.x, held_out.y, "o-", color=ORANGE, linewidth=1.6, markersize=4, label="held out")
    ax.axhline(0, color=GRID, linewidth=1.2)


def likelihoods(ax: Any, history: History) -> None:
    """Draw the log-probabilities of chosen and rejected answers."""
    title(ax, "Log-probability of an answer")
    for name, colour in (("chosen", GREEN), ("rejected", RED)):
        raw_and_mean(
            ax,
            Curve.of({s: metric(e.extras, f"logps/{name}") for s, e in history.steps.items()}),
            colour,
            name,
        )
    say_if_empty(ax, bool(ax.lines), "not reported")


def rewards(ax: Any, history: History) -> None:
    """Draw the mean reward of a rollout's answers, that of each reward function, and the entropy."""
    title(ax, "Reward of sampled answers")
    names = sorted({n for e in history.steps.values() for n in e.extras if n.startswith("reward/")})
    total = Curve.of({s: metric(e.extras, "reward") for s, e in history.steps.items()})
    raw_and_mean(ax, total, BLUE, "reward")
    for name, colour in zip(names if len(names) > 1 else (), (GREEN, ORANGE, PURPLE, RED), strict=False):
        curve = Curve.of({s: metric(e.extras, name) for s, e in history.steps.items()})
        ax.plot(
            curve.x, running_mean(curve.y), color=colour, linewidth=1.4, label=name.removeprefix("reward/")
        )
    entropy = Curve.of(
        {s: metric(e.extras, "entropy") for s, e in history.steps.items() if "entropy" in e.extras}
    )
    if entropy:
        other = ax.twinx()
        other.plot(entropy.x, running_mean(entropy.y), color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        other.set_ylabel("entropy per token, nats (dashed)", fontsize=8.5, color=QUIET)
        other.tick_params(colors=QUIET, labelsize=9, length=0)
        other.spines[["top", "left", "bottom", "right"]].set_visible(False)
        other.set_ylim(bottom=0)


def phases(ax: Any, history: History) -> None:
    """Draw the seconds of a step, by phase."""
    title(ax, "Seconds per step")
    steps = [s for s, e in history.steps.items() if "time/rollout" in e.extras]
    parts = [
        (name, colour, [history.steps[s].extras.get(f"time/{name}", 0.0) for s in steps])
        for name, colour in _PHASES
    ]
    shown = [(name, colour, running_mean(values)) for name, colour, values in parts if sum(values) > 0]
    if steps and shown:
        labels, colours = [name for name, _, _ in shown], [colour for _, colour, _ in shown]
        values = [v for _, _, v in shown]
        ax.stackplot(steps, values, labels=labels, colors=colours, alpha=0.75, linewidth=0)
        ax.set_ylim(0, 1.5 * max(map(sum, zip(*values, strict=True))))  # room for the legend
    say_if_empty(ax, bool(steps), "not measured")
