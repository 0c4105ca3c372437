"""Console output of a run: a live progress bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.rundir import RunDir
from paceline.core.security.secrets import without_secrets
from paceline.core.units import human_bytes, human_count, human_seconds
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import terminal
from paceline.runlog.events import Eval, Step
from paceline.runlog.lines import eval_line, overview_line, short_path, step_line, utilisation
from paceline.runlog.log import is_written
from paceline.runlog.redact import printable

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_RECENT = 64  # steps averaged for the ETA: includes evaluations, still follows changes of speed


class Console:
    """Shows events on ``stream`` (standard output).

    If the stream is gone (a closed pipe), output stops but not the run. ``total_steps`` 0 means unknown.
    Without a terminal a line is written every ``logging_steps`` steps, for the first and the last step, and
    for skipped ones. ``least`` is the lowest level that is written (``training.log_level``): at ``debug``
    every step has a line. The progress bar has no level.
    """

    def __init__(
        self,
        total_steps: int,
        enabled: bool = True,
        *,
        logging_steps: int = 1,
        logging_first_step: bool = False,
        start_step: int = 0,
        stream: TextIO | None = None,
        redact: Callable[[str], str] = str,
        least: str = "info",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._enabled = enabled
        self._every = max(1, logging_steps)
        self._first = logging_first_step
        self._clock, self._redact, self._least = clock, redact, least
        self._marks: deque[tuple[int, float]] = deque([(start_step, clock())], maxlen=_RECENT + 1)
        self._stream = stream if stream is not None else terminal(sys.stdout)
        self._live: Live | None = None
        self._rich: RichConsole | None = None
        if enabled and self._stream.isatty():
            self._rich = RichConsole(file=self._stream, highlight=False, markup=False, emoji=False)

    def step(self, event: Step) -> None:
        """Show a finished step."""
        self._marks.append((event.step, self._clock()))
        if not self._enabled:
            return
        if self._rich is not None:
            self._show(lambda: self._update(event))
        else:
            level = "info" if self._is_due(event) else "debug"
            self._line(step_line(event, self._total or None, self._eta(event.step)), level=level)

    def eval(self, event: Eval) -> None:
        """Show a finished evaluation."""
        self._line(eval_line(event), "cyan")

    def note(self, diagnostic: Diagnostic) -> None:
        """Show a diagnostic."""
        self._line(diagnostic.render(), _STYLES[diagnostic.severity], diagnostic.severity.value)

    def message(self, text: str) -> None:
        """Show plain text, unless it is empty."""
        if text:
            self._line(text)

    def close(self) -> None:
        """Restore the terminal and keep the last line on it. May be called twice."""
        live, self._live = self._live, None
        if live is not None:
            self._show(live.stop)
        self._enabled = False

    def _is_due(self, event: Step) -> bool:
        return (
            event.step % self._every == 0
            or event.step == self._total
            or bool(event.skipped)
            or (self._first and event.step == 1)
        )

    def _eta(self, step: int) -> float | None:
        """Return the seconds left at the recent pace, which includes evaluations and saves."""
        (first, began), (last, ended) = self._marks[0], self._marks[-1]
        if not self._total or last <= first:
            return None
        return max(0.0, (ended - began) / (last - first) * (self._total - step))

    def _line(self, text: str, style: str = "", level: str = "info") -> None:
        if not self._enabled or not is_written(level, self._least):
            return
        text = printable(self._redact(text), keep_newlines=True)
        if self._rich is not None:
            rich = self._rich
            self._show(lambda: rich.print(Text(_wrapped(text, rich.width), style=style), soft_wrap=True))
        else:
            self._show(lambda: self._plain(text))

    def _plain(self, text: str) -> None:
        try:
            self._stream.write(text + "\n")
        except UnicodeEncodeError:
            # a terminal without UTF-8
            self._stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        self._stream.flush()

    def _show(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ValueError):  # a closed pipe or stream
            self._enabled, self._live = False, None

    def _update(self, event: Step) -> None:
        if self._live is None:
            self._live = Live(
                console=self._rich, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(self._render(event), refresh=True)

    def _render(self, event: Step) -> Group:
        eta = self._eta(event.step)
        head = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None):
            head.add_column(ratio=ratio, no_wrap=True)
        share = f"{event.step / self._total:.0%}" if self._total else ""
        left = f"ETA {human_seconds(eta)}" if eta is not None else ""
        bar = ProgressBar(total=self._total or None, completed=event.step, pulse=not self._total)
        head.add_row(
            Text(f"step {event.step}" + (f"/{self._total}" if self._total else ""), style="bold"),
            bar,
            Text(f"{share} {left}".strip()),
        )
        width = self._rich.width if self._rich is not None else 80
        return Group(head, Text.assemble(*_numbers(event, width), overflow="ellipsis", no_wrap=True))


def _wrapped(text: str, width: int) -> str:
    """Break lines at spaces to fit ``width``, continued with an indent; paths and long words stay whole."""
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * min(10, width // 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        if len(line) > width
        else line
        for line in text.split("\n")
    )


def _numbers(event: Step, width: int) -> list[tuple[str, str]]:
    """Return the second line of the bar: dim names, bright values.

    Numbers that do not fit ``width`` are left out, from the end; the reason of a skipped step always stays.
    """
    values = [("loss", f"{event.loss:.4f}"), ("lr", f"{event.lr:.2e}")]
    if event.grad_norm is not None:
        values.append(("grad", f"{event.grad_norm:.2f}"))
    values.append(("tok/s", human_count(event.tokens_per_second)))
    if event.memory_bytes is not None:
        values.append(("mem", human_bytes(event.memory_bytes)))
    values += utilisation(event)
    if event.skipped:
        values.insert(0, ("skipped", event.skipped))
    parts: list[tuple[str, str]] = []
    for name, value in values:
        width -= len(name) + len(value) + 1
        if width < 0 and parts:
            break
        width -= 2
        parts += [
            ("  " if parts else "", ""),
            (f"{name} ", "dim"),
            (value, "yellow" if name == "skipped" else ""),
        ]
    return parts


_PLOT_SECONDS = 120.0


def print_summary(
    run: RunDir,
    checkpoint: str,
    *,
    plot: bool,
    commands: str,
    verbose: bool = False,
    hurries: Callable[[], bool] = lambda: False,
) -> None:
    """Print where the result is, and ``commands``. The run is already saved, so an error here does no harm.

    ``hurries``: whether a signal asks to end, which cuts the drawing short.
    """
    drawn = draw_plot(run, hurries) if plot else "none (training.report_to is none)"
    saved = short_path(checkpoint) if checkpoint else "none (training.save_strategy is no)"
    lines = [overview_line("checkpoint", saved)]
    if verbose:
        lines = [overview_line("run", str(run.root)), *lines, overview_line("plot", drawn)]
    elif plot and not hurries() and not run.plot_png.is_file():
        lines.append(overview_line("plot", drawn))
    print("\n".join([*lines, *filter(None, (commands,))]), flush=True)


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
