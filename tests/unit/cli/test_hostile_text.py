"""Text of others (YAML, rows, models, files, exceptions, stores, logs) reaches the terminal as text:
nothing in it is obeyed, no line of it is forged.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from support import write_yaml

from paceline.cli.main import main as command
from paceline.core.diagnostics import Diagnostic, print_diagnostics
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.data.prepare.main import main as prepare
from paceline.launch.program import RedactedStream, redacted, terminal
from paceline.runlog.log import TextLog
from paceline.runlog.redact import Redactor
from paceline.runtime.process_group.refusal import failure_message, parsed_failure
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.training.run.peer_failures import FailureReporter

# colours, title of the window, cursor up and erase, C1's CSI, bell, backspace, carriage return, bidi override
# and isolate, tags, line separator
HOSTILE = "\x1b[31mEVIL\x1b]0;t\x07\x1b[1A\x1b[2K\x9b2J\x08\rok\u202egpj.exe\u2066\U000e0041\u2028"
FORGED = "x\nerror[launch.worker_killed] rank 0 was ended"


def harmless(text: str) -> bool:
    """Nothing that a terminal obeys, but for newlines and tabs."""
    return not [
        c
        for c in text
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t\u200c\u200d"
    ]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], str]]:
    """What a program of the package prints on both streams."""

    def run(program: Callable[[], Any]) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        with contextlib.suppress(SystemExit):
            program()
        monkeypatch.undo()
        text = stream.getvalue()
        assert "EVIL" in text, f"the hostile text was not printed at all: {text}"
        assert harmless(text), ascii(text)
        assert not any(line.startswith("error[launch.worker_killed]") for line in text.splitlines())
        return text

    yield run


def test_a_key_and_a_value_of_the_yaml(printed: Any, tiny: Any, tmp_path: Path) -> None:
    config = tiny()
    config["training"][HOSTILE + FORGED] = 1
    config["training"]["lr_scheduler_type"] = HOSTILE + FORGED
    path = write_yaml(tmp_path / "c.yaml", config)
    assert printed(lambda: command(["plan", str(path)])).count("EVIL") >= 2
    printed(lambda: command(["plan", str(path), "--json"]))


def test_an_argument_and_the_name_of_a_file(printed: Any, tiny: Any, tmp_path: Path) -> None:
    name = "a" + HOSTILE
    printed(lambda: command(["plan", str(tmp_path / f"{name}.yaml")]))
    printed(lambda: command(["plan", f"--{name}"]))
    printed(lambda: command([name]))
    config = tiny()
    config["data"]["train"] = str(tmp_path / f"{name}.json")
    printed(lambda: prepare(["--config-json", str(write_yaml(tmp_path / "config.json", config))]))


def test_a_model_s_config(printed: Any, tiny: Any, tmp_path: Path) -> None:
    config = tiny()
    folder = tmp_path / "model"
    folder.mkdir()
    described = {
        **config["model"]["config"],
        "model_type": HOSTILE + FORGED,
        "architectures": [HOSTILE + FORGED],
    }
    (folder / "config.json").write_text(json.dumps(described))
    config["model"] = {"name_or_path": str(folder), "tokenizer": config["model"]["tokenizer"]}
    printed(lambda: command(["plan", str(write_yaml(tmp_path / "c.yaml", config))]))


def test_a_row_of_the_data(printed: Any, tiny: Any, tmp_path: Path) -> None:
    config = tiny()
    rows = [{HOSTILE + FORGED: "a", "text\x1b[2JEVIL": HOSTILE}] * 3
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    config["data"]["train"] = str(tmp_path / "rows.json")
    path = write_yaml(tmp_path / "config.json", config)
    printed(lambda: prepare(["--config-json", str(path)]))


def test_an_exception_and_a_finding(printed: Any) -> None:
    @redacted
    def program() -> None:
        print_diagnostics(
            ConfigError(
                Diagnostic("test.code", HOSTILE + FORGED, HOSTILE + FORGED, HOSTILE + FORGED, FORGED)
            ).diagnostics,
            0,
        )
        raise SystemExit(f"never printed by us {HOSTILE}")

    text = printed(program)
    assert text.count("EVIL") == 3 and "\\x1b[31mEVIL" in text and "\\u202egpj" in text


def test_a_value_of_the_ranks_store(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a secret a stranger's error is believed; what it says is text all the same."""
    store = dist.HashStore()
    evil = Diagnostic(
        "evil.code", HOSTILE + FORGED, HOSTILE + FORGED, HOSTILE + FORGED, HOSTILE, evidence={"x": HOSTILE}
    )
    store.set("error", failure_message(1, evil, 1))
    message = parsed_failure(SignedStore(store, b"", "run").get("error"))
    assert message is not None and message[1].what == HOSTILE + FORGED
    reporter = FailureReporter(SimpleNamespace(observers=None, line=mock.Mock()))  # type: ignore[arg-type]
    text = printed(redacted(lambda: reporter.peer_failed(*message, 1)))
    assert text.count("EVIL") == 4


def test_a_rank_s_log(printed: Any, tmp_path: Path) -> None:
    path = RunDir.at(tmp_path).rank_log(0)
    log = TextLog(path)
    log.line(HOSTILE + FORGED)
    log.close()
    written = path.read_text()
    assert harmless(written) and [line.startswith("    | ") for line in written.splitlines()] == [False, True]
    path.write_text(path.read_text() + HOSTILE)  # a library wrote into it, by descriptor

    @redacted
    def program() -> None:
        print(path.read_text())

    printed(program)


def test_only_who_asks_for_the_terminal_writes_its_control_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    beneath = Terminal()
    outlet = RedactedStream(beneath, Redactor(["canary-123"]))
    assert not outlet.isatty() and outlet.terminal().isatty() and terminal(beneath) is beneath
    outlet.write("\x1b[31m")
    terminal(outlet).write("\x1b[32m canary-123")
    assert beneath.getvalue() == "\\x1b[31m\x1b[32m ***"
    for way_round in ("buffer", "detach"):
        assert not hasattr(outlet, way_round)


def test_colours_that_the_environment_asks_for_do_not_become_litter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with contextlib.suppress(SystemExit):
        command(["plan", "--help"])
    told = capsys.readouterr().out
    assert "Usage" in told and "x1b" not in told
