"""The third column of a run's plot, by algorithm.

Preference training: calibration and margins. On-policy training: rewards, and the time spent per phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runlog.history import History
from paceline.watch.figure import (
    BLUE,
    DASHED,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    dots,
    label_if_empty,
    of_evaluations,
    of_steps,
    percents,
    raw_and_mean,
    running_mean,
    title,
)

_MARGINS = ("margin", "rewards/margins")  # a reward model's, and DPO's in TRL's words
#: In the order of a rollout.
_PHASES = {"sync": PURPLE, "generate": BLUE, "score": ORANGE, "ask": RED, "wait": QUIET, "train": GREEN}


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
    bins = sorted({int(name.partition("/")[0]) for name in last.bins})
    # share of the pairs, mean confidence and accuracy, in ascending order of confidence
    rows = [[last.bins[f"{k}/{name}"] for name in ("share", "confidence", "correct")] for k in bins]
    ax.plot([0.5, 1], [0.5, 1], color=QUIET, linewidth=1, linestyle=DASHED, label="perfectly calibrated")
    shares, sure, right = map(list, zip(*rows, strict=True))
    ax.vlines(sure, sure, right, color=RED, linewidth=2, alpha=0.5, label="gap")
    ax.plot(sure, right, color=BLUE, linewidth=1.2, alpha=0.6)
    ax.scatter(
        sure, right, s=[30 + 600 * share for share in shares], color=BLUE, alpha=0.85, zorder=3, linewidths=0
    )
    for share, x, y in rows:
        if share >= 0.03:
            offset = {"xytext": (0, -15), "textcoords": "offset points", "ha": "center"}
            ax.annotate(f"{share:.0%}", (x, y), fontsize=8, color=INK, **offset)
    error = last.metrics.get("eval_calibration_error")
    label = "" if error is None else f"step {last.step}, error {error:.1%}"
    ax.set_title(label, loc="right", fontsize=9, color=QUIET)
    ax.set_xlim(0.48, 1.02)
    ax.set_ylim(min(0.45, *right) - 0.05, 1.04)
    ax.set_xlabel("confidence", fontsize=9, color=QUIET)
    ax.set_ylabel("ranked correctly", fontsize=9, color=QUIET)
    percents(ax.yaxis)
    percents(ax.xaxis)


def margins(ax: Any, history: History) -> None:
    """Draw the margin of chosen over rejected answers."""
    title(ax, "Margin, chosen over rejected")
    name = next(n for n in _MARGINS if any(n in e.extras for e in history.steps.values()))
    raw_and_mean(ax, of_steps(history, name), BLUE, "training")
    held_out = of_evaluations(history, f"eval_{name}")
    if held_out:
        dots(ax, held_out, ORANGE, "held out", linewidth=1.6)
    ax.axhline(0, color=GRID, linewidth=1.2)


def likelihoods(ax: Any, history: History) -> None:
    """Draw the log-probabilities of chosen and rejected answers."""
    title(ax, "Log-probability of an answer")
    for name, colour in (("chosen", GREEN), ("rejected", RED)):
        raw_and_mean(ax, of_steps(history, f"logps/{name}"), colour, name)
    label_if_empty(ax, bool(ax.lines), "not reported")


def rewards(ax: Any, history: History) -> None:
    """Draw the mean reward of a rollout's answers, that of each reward function, and the entropy."""
    title(ax, "Reward of sampled answers")
    names = sorted({n for e in history.steps.values() for n in e.extras if n.startswith("reward/")})
    raw_and_mean(ax, of_steps(history, "reward"), BLUE, "reward")
    for name, colour in zip(names if len(names) > 1 else (), (GREEN, ORANGE, PURPLE, RED), strict=False):
        curve, label = of_steps(history, name), name.removeprefix("reward/")
        ax.plot(curve.x, running_mean(curve.y), color=colour, linewidth=1.4, label=label)
    entropy = of_steps(history, "entropy")
    if entropy:
        other = ax.twinx()
        other.plot(entropy.x, running_mean(entropy.y), color=QUIET, linewidth=1, linestyle=DASHED)
        other.set_ylabel("entropy per token, nats (dashed)", fontsize=8.5, color=QUIET)
        other.tick_params(colors=QUIET, labelsize=9, length=0)
        other.spines[["top", "left", "bottom", "right"]].set_visible(False)
        other.set_ylim(bottom=0)


def phases(ax: Any, history: History) -> None:
    """Draw the seconds of a step, by phase."""
    title(ax, "Seconds per step")
    steps = [s for s, e in history.steps.items() if "time/rollout" in e.extras]
    seconds = {name: [history.steps[s].extras.get(f"time/{name}", 0.0) for s in steps] for name in _PHASES}
    shown = {name: running_mean(values) for name, values in seconds.items() if sum(values) > 0}
    if shown:
        colours = [_PHASES[name] for name in shown]
        ax.stackplot(steps, *shown.values(), labels=[*shown], colors=colours, alpha=0.75, linewidth=0)
        ax.set_ylim(0, 1.5 * max(map(sum, zip(*shown.values(), strict=True))))  # room for the legend
    label_if_empty(ax, bool(steps), "not measured")
