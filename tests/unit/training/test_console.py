"""The console: a bar on a terminal, plain lines elsewhere, and never the end of a run."""

import io
import re

import pytest

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.runlog.events import Eval, Step
from paceline.runlog.lines import is_verbose
from paceline.training.reporting.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(number: int, **kwargs: object) -> Step:
    values = {
        "lr": 1e-4,
        "grad_norm": 0.5,
        "tokens_per_second": 1234.0,
        "mfu": 0.61,
        "memory_bytes": 3 << 29,
        **kwargs,
    }
    return Step(number, 0.1, 2.0, **values)  # type: ignore[arg-type]


def test_off_a_terminal_lines_come_at_logging_steps_without_control_characters() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(10, logging_steps=4, stream=out, clock=clock)
    for number in range(1, 11):
        clock.now += 2.0
        console.step(step(number))
    console.close()
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 4/10", "step 8/10", "step 10/10"]
    assert (
        lines[0]
        == "step 4/10  loss 2.0000  lr 0.0001  grad norm 0.500  1.23K tokens/s  MFU 61%  memory 1.50 GiB "
        " ETA 12s"
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out.getvalue())


def test_first_and_skipped_steps_are_told() -> None:
    out = io.StringIO()
    console = Console(0, logging_steps=100, logging_first_step=True, stream=out)
    console.step(step(1))
    console.step(step(2))
    console.step(step(3, skipped="overflow", grad_norm=None, mfu=None, memory_bytes=None))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 1  ") and lines[1].endswith("SKIPPED (overflow)") and len(lines) == 2


def test_eta_counts_from_the_resumed_step_and_includes_pauses() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(100, stream=out, clock=clock, start_step=90)
    clock.now = 10.0  # an evaluation took most of it
    console.step(step(91))
    assert "ETA 1m30s" in out.getvalue()


def test_a_terminal_gets_a_bar_and_lines_above_it() -> None:
    out = Terminal()
    console = Console(10, stream=out)
    console.step(step(1))
    console.eval(Eval(1, {"eval_loss": 1.5, "eval_token_accuracy": 0.5}))
    console.note(Diagnostic("a.b", "look [red]here[/red]", severity=Severity.WARNING))
    console.step(step(10))
    console.close()
    console.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "step 10/10" in text and "100%" in text and "MFU 61%" in text and "loss 2.0000" in text
    assert "evaluation at step 1: eval_loss 1.5000  eval_token_accuracy 50.0%" in text
    assert "warning[a.b] look [red]here[/red]" in text
    assert out.getvalue().rstrip("\r\n").endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("columns", [60, 80])
def test_what_a_terminal_shows_fits_it_and_cuts_no_value(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    console = Console(10, stream=out)
    console.message("where     " + "a sentence of many words, " * 8 + "/a/path/" + "x" * 90)
    console.step(step(1, mfu=None, of_product=1.2))
    console.step(step(2, skipped="overflow"))
    console.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    lines = [line for line in text.replace("\r", "\n").split("\n") if "/a/path/" not in line]
    assert max(map(len, lines)) <= columns and "…" not in text
    assert "/a/path/" + "x" * 90 in text and "skipped overflow" in text
    assert ("mem 1.50 GiB" in text) is (columns == 80)
    assert len([line for line in lines if line.startswith(" " * 10) and "words," in line]) >= 2


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_texts_cannot_move_the_cursor(kind: type[io.StringIO]) -> None:
    out = kind()
    console = Console(1, stream=out)
    console.message("a\x1b[2Jb\rc\x07")
    console.message("")
    assert "a\\x1b[2Jb\\rc\\x07\n" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_closed_stream_does_not_end_the_run(kind: type[io.StringIO]) -> None:
    out = kind()
    console = Console(3, stream=out)
    console.step(step(1))
    out.close()
    console.step(step(2))
    console.message("x")
    console.close()


def test_a_broken_pipe_does_not_end_the_run() -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    console = Console(3, stream=Broken())
    console.step(step(1))
    console.step(step(2))
    console.close()


def test_an_ascii_stream_gets_escapes() -> None:
    raw = io.BytesIO()
    console = Console(3, stream=io.TextIOWrapper(raw, encoding="ascii"))
    console.message("naïve")
    assert raw.getvalue() == b"na\\xefve\n"


def test_disabled_says_nothing() -> None:
    out = io.StringIO()
    console = Console(3, enabled=False, stream=out)
    console.step(step(1))
    console.message("x")
    console.close()
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "verbose"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)]
)
def test_the_variable_for_every_line_can_be_set_to_0(value: str | None, verbose: bool) -> None:
    assert is_verbose({} if value is None else {"PACELINE_VERBOSE": value}) is verbose
