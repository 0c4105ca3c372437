"""The dispatcher and the verbs: help without heavy imports, messages, exit codes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.api.run import existing_run
from paceline.cli import main as cli
from paceline.cli.errors import reported
from paceline.core.diagnostics import Diagnostic, all_codes
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.process_spec import LaunchOptions

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "transformers", "numpy", "pydantic", "rich", "ruamel.yaml", "typer")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert isinstance(stop.value.code, int)
    return stop.value.code


def imported_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after ``code``."""
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=True
    )
    return set(done.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    modules = imported_after("from paceline.cli.main import dispatch\ndispatch(['--help'])")
    assert "paceline.cli.main" in modules
    assert not modules & set(HEAVY)


def test_help_of_a_verb_imports_no_torch() -> None:
    code = f"""
from paceline.cli.main import dispatch
for verb in {list(cli.VERBS)!r}:
    if verb != "demo":  # answers from its own process
        try:
            dispatch([verb, "--help"])
        except SystemExit as stop:
            assert stop.code == 0, verb
"""
    modules = imported_after(code)
    assert {f"paceline.cli.{module}" for module in cli.MODULES} <= modules
    assert not modules & {"torch", "transformers", "numpy", "rich"}


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in cli.VERBS)


def test_every_verb_has_its_module() -> None:
    assert sorted(verb for verbs in cli.MODULES.values() for verb in verbs) == sorted(cli.VERBS)


def test_no_arguments_is_help_and_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typo", "meant"), [("trian", "paceline train"), ("expot", "paceline export"), ("xyz", "one of: train")]
)
def test_a_verb_misspelt(typo: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typo) == 2
    err = capsys.readouterr().err
    assert "cli.unknown_verb" in err and meant in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "CONFIG"),
        (["train", "c.yaml", "--nprc", "2"], "--nproc"),
        (["train", "c.yaml", "--nproc", "two"], "--nproc"),
        (["train", "c.yaml", "--max_steps", "5"], ": max_steps=5"),
        (["train", "c.yaml", "--training.seed=5"], ": training.seed=5"),
        (["train", "c.yaml", "seed"], "key=value"),
        (["train", "c.yaml", "d.yaml"], "extends: [FIRST.yaml, d.yaml]"),
        (["train", "c.yaml", "=1"], "key=value"),
        (["export", "somewhere"], "--to"),
        (["plot", "no/such/run"], "no such run directory"),
        (["explain", "run.exsts"], "run.exists"),
    ],
)
def test_arguments_misspelt(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_flags_become_config_keys() -> None:
    assert LaunchOptions().flags() == {}
    assert LaunchOptions(nproc=2, node_rank=0, algorithm="sft").flags() == {
        "launch.nproc": 2,
        "launch.node_rank": 0,
        "training.algorithm": "sft",
    }


def test_a_directory_without_a_run_names_those_with_one(tmp_path: Path) -> None:
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    (run_dir / "plan.json").write_text("{}")
    assert existing_run(run_dir) == run_dir
    with pytest.raises(ConfigError) as refused:
        existing_run(tmp_path)
    assert str(run_dir) in refused.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            ConfigError(Diagnostic("a.b", "wrong"), Diagnostic("a.c", "wrong too")),
            ExitCode.CONFIG,
            "error[a.c] wrong too",
        ),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), ExitCode.CONFIG, "x.yaml"),
        (PermissionError(13, "Permission denied", "/y"), ExitCode.CONFIG, "Permission denied"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_errors_are_told_without_a_traceback(
    error: BaseException, code: ExitCode, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert reported(fail) == code
    err = capsys.readouterr().err
    assert text in err and "Traceback" not in err


def test_a_defect_leaves_its_traceback_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of all things")

    assert reported(fail) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert "cli.defect" in err and "of all things" in err and "Traceback" not in err
    file = Path(err.split("report it with ")[1].strip())
    assert "Traceback" in file.read_text()
    file.unlink()


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (75, 75)])
def test_what_a_verb_answers_is_the_exit_code(value: object, code: int) -> None:
    assert reported(lambda: value) == code


@pytest.mark.parametrize(
    "code", ["data.unknown_role", "launch.option_wins", "[data.no_answer]", "runtime.env_uneven"]
)
def test_explain_prints_sentences(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", code) == 0
    name, *lines = capsys.readouterr().out.splitlines()
    assert name == code.strip("[]")
    assert " ".join(" ".join(lines).split()) == all_codes()[name].explanation


def test_explain_alone_lists_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain") == 0
    assert set(capsys.readouterr().out.split()) == set(all_codes())


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collects the commands that would replace this process."""
    started: list[list[str]] = []

    def execv(path: str, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr("os.execv", execv)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return started


@pytest.mark.parametrize(
    ("arguments", "module", "passed_on"),
    [
        (
            ["export", "RUN", "--to", "DIR"],
            "paceline.checkpoint.export.main",
            ["export", "RUN", "--to", "DIR"],
        ),
        (["export", "RUN", "--to", "DIR", "--overwrite"], "paceline.checkpoint.export.main", ["--overwrite"]),
        (
            ["export", "RUN", "--to", "DIR", "--checkpoint", "best"],
            "paceline.checkpoint.export.main",
            ["--checkpoint", "best"],
        ),
        (["checkpoints", "list", "RUN", "--json"], "paceline.checkpoint.main", ["list", "RUN", "--json"]),
        (["checkpoints", "verify", "RUN"], "paceline.checkpoint.main", ["--checkpoint", "all"]),
        (["checkpoints", "diff", "A", "B"], "paceline.checkpoint.main", ["diff", "A", "B"]),
        (
            ["checkpoints", "prune", "RUN", "--keep", "3", "--every", "100", "--dry-run"],
            "paceline.checkpoint.main",
            ["--keep", "3", "--every", "100", "--dry-run"],
        ),
        (
            ["checkpoints", "average", "RUN", "--last", "3", "--to", "DIR"],
            "paceline.checkpoint.main",
            ["average", "RUN", "--to", "DIR"],
        ),
        (
            ["checkpoints", "convert", "THEIRS", "--to", "DIR", "--step", "0", "--weights-only"],
            "paceline.checkpoint.main",
            ["convert", "THEIRS", "--to", "DIR", "--step", "0", "--weights-only"],
        ),
        (
            ["checkpoints", "convert", "RUN", "--dcp", "--overwrite", "--to", "DIR", "--json"],
            "paceline.checkpoint.main",
            ["convert", "RUN", "--to", "DIR", "--dcp", "--json", "--overwrite"],
        ),
        (
            ["chat", "RUN", "--prompt", "hello there"],
            "paceline.evaluation.chat",
            ["RUN", "--prompt", "hello there"],
        ),
        (["chat", "RUN", "--temperature", "0.7"], "paceline.evaluation.chat", ["--temperature", "0.7"]),
        (["bench", "scaling", "--nproc", "1,2"], "paceline.demo.scaling", ["--nproc", "1,2"]),
        (["demo", "--help"], "paceline.demo.main", ["--help"]),
    ],
)
def test_verbs_that_need_torch_become_another_process(
    arguments: list[str], module: str, passed_on: list[str], no_start: list[list[str]]
) -> None:
    assert run(*arguments) == 0
    [started] = no_start
    assert started[:4] == [sys.executable, "-m", "paceline.launch.run_module", module]
    assert " ".join(passed_on) in " ".join(started[4:])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_train_says_on_a_terminal_what_begins_before_it_imports_more(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.cli.training import first_word

    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    first_word(Path("a\x1b[31m.yaml"))
    said = stream.getvalue()
    assert ("a\\x1b[31m.yaml" in said) is is_terminal and "\x1b" not in said and bool(said) is is_terminal


def test_what_train_imports_before_its_first_word_is_little() -> None:
    modules = imported_after("import paceline.cli.training, paceline.cli.join, paceline.launch.process_spec")
    assert not {name for name in modules if name.startswith(("paceline.rules", "paceline.plan.cost"))}
    assert not modules & {"pydantic", "torch", "numpy", "rich", "ruamel.yaml"}
