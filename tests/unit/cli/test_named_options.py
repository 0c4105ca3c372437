"""Options that messages name exist for the command that was run."""

from __future__ import annotations

import ast
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import typer

import paceline
from paceline.cli import compat
from paceline.cli.main import VERBS, application_of
from paceline.core.diagnostics import Diagnostic
from paceline.launch.preflight import child_checks
from paceline.launch.process_spec import LaunchOptions

PACKAGE = Path(next(iter(paceline.__path__)))
ROOT = PACKAGE.parent
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
# Words of other programs' command lines: an option beside one of them is that program's.
OTHERS = re.compile(
    r"\b(torchrun|deepspeed|accelerate|mpirun|srun|flux|hf|tensorboard|nvidia-smi|python \S+\.py)\b"
)


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def script(command: Callable[..., Any]) -> click.Command:
    app = typer.Typer()
    app.command()(command)
    return typer.main.get_command(app)


SCRIPTS = {
    "main.py": options_of(script(compat.main_command)),
    "run_distributed.py": options_of(script(compat.run_distributed_command)),
}
TRAIN = options_of(typer.main.get_command(application_of("train")))


def texts(node: ast.AST) -> Iterator[str]:
    """The strings below ``node``; an f-string is one, with X for its values."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def messages() -> Iterator[tuple[str, str]]:
    """Every text handed to a Diagnostic, with its place."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Diagnostic":
                for text in texts(call):
                    yield f"{file.relative_to(ROOT)}:{call.lineno}", text


def test_no_message_names_an_option_that_no_command_has() -> None:
    known = TRAIN.union(*SCRIPTS.values(), {"--help"})
    for verb in VERBS:
        known |= options_of(typer.main.get_command(application_of(verb)))
    wrong = [
        f"{place}: {option} in {text!r}"
        for place, text in messages()
        for option in OPTION.findall(text)
        if option not in known and not OTHERS.search(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    "shape",
    ["{o}", "{o} 3", "{o} 3 on every node", "{o} 3, or less", "a number, or {o} 3", "without {o} and {o}"],
)
def test_a_message_of_train_in_the_words_of_the_script(name: str, shape: str) -> None:
    for option in sorted(TRAIN - {"--help", "--dry-run", "--dry_run", "--local-rank", "--local_rank"}):
        text = shape.format(o=option)
        told = compat.in_words_of(name, Diagnostic("a.b", text, option, "found", text))
        for said in (told.what, told.where, told.hint):
            for found in OPTION.findall(re.sub(r"torchrun \S+", "", said)):
                assert found in SCRIPTS[name], f"{said!r} from {text!r}"


@pytest.mark.parametrize("spelling", ["nproc-per-node", "node-rank", "master-addr", "master-port"])
def test_both_spellings_are_one_option(spelling: str) -> None:
    other = spelling.replace("-", "_")
    for options in (TRAIN, SCRIPTS["run_distributed.py"]):
        assert {f"--{spelling}", f"--{other}"} <= options


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            ["-m", "paceline.cli.main", "train", "config.yaml", "--nproc", "2", "--master_port", "PORT"],
            "--master_port N",
        ),
        (
            ["-m", "paceline.cli.main", "train", "config.yaml", "--nproc", "2", "--master-port", "PORT"],
            "--master_port N",
        ),
        (
            [
                "scripts/run_distributed.py",
                "--config",
                "config.yaml",
                "--nproc_per_node",
                "2",
                "--master-port",
                "PORT",
            ],
            "--master_port N",
        ),
        (
            ["main.py", "--config", "config.yaml", "launch.nproc=2", "launch.master_port=PORT"],
            "launch.master_port=N",
        ),
    ],
)
def test_a_port_in_use_by_each_command(
    line: list[str],
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [word.replace("PORT", str(port)) for word in line]
        monkeypatch.setenv("PACELINE_TRAINING__OUTPUT_DIR", str(tmp_path / "run"))
        # the look has a process of its own
        monkeypatch.setattr(child_checks, "run_child", lambda job: ({}, ""))
        monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
        monkeypatch.setattr(sys, "argv", words[2:] if words[0] == "-m" else words)
        monkeypatch.chdir(ROOT)
        with pytest.raises(SystemExit) as stop:
            if words[0] == "-m":
                monkeypatch.setattr(sys, "argv", ["paceline", *words[2:]])
                import_module("paceline.cli.main").main()
            else:
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    err = capsys.readouterr().err
    assert stop.value.code == 2 and "launch.port_in_use" in err
    assert re.search(hint.replace("N", r"\d+"), err.partition("fix:")[2]), err
    assert "launch.master_port" in err


def test_main_alone_is_one_process_unless_the_config_says_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from paceline.cli import start as starting
    from paceline.launch import start_run

    counted: list[int | None] = []

    class Stop(Exception):
        pass

    def planned(loaded: Any, **_: Any) -> Any:
        counted.append(loaded.config.launch.nproc)
        raise Stop

    monkeypatch.setattr(start_run, "planned", planned)
    for settings in ([], ["launch.nproc=2"]):
        with pytest.raises(Stop):
            starting.start(ROOT / "config.yaml", settings, LaunchOptions(), one_process=True)
    assert counted == [1, 2]
