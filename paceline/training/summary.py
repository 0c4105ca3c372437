"""Summary that rank 0 prints at the end: where the results are, and what to do next."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from paceline.core.rundir import RunDir
from paceline.core.secret_values import without_secrets
from paceline.launch.environment.guide_variables import current

_PLOT_SECONDS = 120.0


def print_summary(
    run: RunDir, checkpoint: str, *, plot: bool, answers: bool, hurries: Callable[[], bool] = lambda: False
) -> None:
    """Print the summary. The run is already finished and saved, so nothing here can harm it.

    ``answers``: the trained model writes text, so one can chat with it; ``hurries``: whether a signal asks to
    end, which cuts the drawing short.
    """
    drawn = draw_plot(run, hurries) if plot else "none (training.report_to is none)"
    print(
        f"run         {run.root}\ncheckpoint  {checkpoint or 'none (training.save_strategy is no)'}\nplot    "
        f"    {drawn}"
    )
    if checkpoint:
        chat = f"paceline chat {run.root}   |   " if answers else ""
        print(f"next        {chat}paceline export {run.root} --to DIR", flush=True)


def draw_plot(run: RunDir, hurries: Callable[[], bool] = lambda: False) -> str:
    """Return the path of the PNG, or why it was not drawn.

    Plotting runs in its own process: it needs no torch and must not disturb the run.
    """
    argv = [sys.executable, "-m", "paceline.watch.plot", str(run.root)]
    with subprocess.Popen(
        argv,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=without_secrets(current()),
    ) as drawn:
        deadline = time.monotonic() + _PLOT_SECONDS
        while True:
            try:
                _, words = drawn.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                why = "a signal came" if hurries() else f"it took more than {_PLOT_SECONDS:.0f} s"
                if hurries() or time.monotonic() > deadline:
                    drawn.kill()
                    return f"not drawn: {why} (paceline plot draws it)"
    return str(run.plot_png) if drawn.returncode == 0 else f"not drawn: {words.strip()[-300:]}"
