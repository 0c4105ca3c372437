"""Summary that rank 0 prints at the end: where the results are, and what to do next."""

from __future__ import annotations

import subprocess
import sys

from paceline.core.rundir import RunDir
from paceline.core.secret_values import without_secrets
from paceline.launch.environ import current


def print_summary(run: RunDir, checkpoint: str, *, plot: bool, answers: bool) -> None:
    """Print the summary. The run is already finished and saved, so nothing here can harm it.

    ``answers``: the trained model writes text, so one can chat with it.
    """
    drawn = draw_plot(run) if plot else "none (training.report_to is none)"
    print(
        f"run         {run.root}\ncheckpoint  {checkpoint or 'none (training.save_strategy is no)'}\nplot    "
        f"    {drawn}"
    )
    if checkpoint:
        chat = f"paceline chat {run.root}   |   " if answers else ""
        print(f"next        {chat}paceline export {run.root} --to DIR", flush=True)


def draw_plot(run: RunDir) -> str:
    """Return the path of the PNG, or why it was not drawn.

    Plotting runs in its own process: it needs no torch and must not disturb the run.
    """
    argv = [sys.executable, "-m", "paceline.watch.plot", str(run.root)]
    try:
        drawn = subprocess.run(
            argv, capture_output=True, text=True, timeout=120, check=False, env=without_secrets(current())
        )
    except subprocess.TimeoutExpired:
        return "not drawn: it took more than 120 s (paceline plot draws it)"
    return str(run.plot_png) if drawn.returncode == 0 else f"not drawn: {drawn.stderr.strip()[-300:]}"
