"""What rank 0 says when all is over: where everything lies, and what to do next."""

from __future__ import annotations

import subprocess
import sys

from paceline.core.rundir import RunDir
from paceline.core.secret_values import without_secrets
from paceline.launch.environ import current


def leave_word(run: RunDir, checkpoint: str, *, plot: bool) -> None:
    """Print it. The run is over and durable: nothing here can harm it."""
    drawn = draw_plot(run) if plot else "none (training.report_to is none)"
    print(
        f"run         {run.root}\ncheckpoint  {checkpoint or 'none (training.save_strategy is no)'}\nplot        {drawn}"
    )
    if checkpoint:
        print(f"next        paceline chat {run.root}   |   paceline export {run.root} --to DIR", flush=True)


def draw_plot(run: RunDir) -> str:
    """Where the PNG lies, or why it was not drawn. A process of its own: plotting needs no torch and may not disturb a run."""
    argv = [sys.executable, "-m", "paceline.watch.plot", str(run.root)]
    try:
        drawn = subprocess.run(
            argv, capture_output=True, text=True, timeout=120, check=False, env=without_secrets(current())
        )
    except subprocess.TimeoutExpired:
        return "not drawn: it took more than 120 s (paceline plot draws it)"
    return str(run.plot_png) if drawn.returncode == 0 else f"not drawn: {drawn.stderr.strip()[-300:]}"
