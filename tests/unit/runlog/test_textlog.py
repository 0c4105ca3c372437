"""Text logs: no secret, no forged line, no control character."""

import base64
from pathlib import Path
from urllib.parse import quote

import pytest

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.rundir import RunDir
from paceline.core.security.secrets import secrets_in
from paceline.runlog.events import Notice, RunStarted, Step, read_events
from paceline.runlog.lines import line_of
from paceline.runlog.log import RunLog, TextLog
from paceline.runlog.redact import Redactor, printable

SECRET = "hf_ab/cd+ef=SECRET"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_every_form_of_a_secret_is_blotted_out(form: str) -> None:
    assert Redactor([SECRET])(f"a {form} b") == "a *** b"


def test_secrets_are_found_by_the_name_of_the_variable() -> None:
    environ = {
        "HF_TOKEN": SECRET,
        "WANDB_API_KEY": "k" * 40,
        "PATH": "/usr/bin:/bin",
        "TOKENIZERS_PARALLELISM": "false",
        "DB_PASSWORD": "longenough",
    }
    assert set(secrets_in(environ)) == {SECRET, "k" * 40, "longenough"}


def test_no_secrets_change_nothing() -> None:
    assert Redactor(["", "short"])("a short text") == "a short text"


def test_control_characters_are_neutralised() -> None:
    assert (
        printable("\x1b[31mred\x1b[0m \x07bell\r\n2026 info ok \x1b]0;title\x07é🙂\u202e\x9b\U000e0041")
        == "\\x1b[31mred\\x1b[0m \\x07bell\\r\\n2026 info ok"
        " \\x1b]0;title\\x07é🙂\\u202e\\u009b\\udb40\\udc41"
    )


def test_a_message_cannot_forge_a_log_line(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "t.log", clock=lambda: 0.0)
    log.line("answer: x\n2026-01-01 00:00:00.000 error   all is lost")
    log.close()
    first, second = (tmp_path / "t.log").read_text().splitlines()
    assert first.endswith("info    answer: x")
    assert second.startswith("    | ")


def test_run_log_writes_training_log_on_rank_0_only(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    for rank in (0, 1):
        log = RunLog(run, rank, Redactor([SECRET]))
        log.write(RunStarted("digest", 2))
        log.write(Step(1, 0.1, 2.0), level="debug")
        log.write(Notice(Diagnostic("a.b", f"saw {SECRET}", severity=Severity.WARNING)))
        log.close()
        log.close()
        assert len(read_events(run.events(rank))) == 3
        assert "started: 2 processes" in run.rank_log(rank).read_text()
    assert run.training_log.read_text().count("started") == 1
    assert "warning" in run.training_log.read_text()
    assert not any(SECRET in p.read_text() for p in run.root.rglob("*") if p.is_file())


def test_step_in_words() -> None:
    line = line_of(
        Step(
            3,
            0.1,
            float("nan"),
            lr=5e-5,
            grad_norm=None,
            tokens_per_second=1234.0,
            mfu=0.456,
            memory_bytes=1 << 30,
            skipped="overflow",
        )
    )
    assert line == "step 3  loss nan  lr 5e-05  1.23K tokens/s  MFU 46%  memory 1.00 GiB  SKIPPED (overflow)"
    held = Step(3, 0.1, 1.0, memory_bytes=1 << 30, reserved_bytes=3 << 29)
    assert "memory 1.00 GiB (1.50 GiB reserved)" in line_of(held)
