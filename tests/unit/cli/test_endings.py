"""Every program that a verb starts ends by the same rules: signals, a reader that went away, a disk that
refuses.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from paceline.launch.program import EndedBySignal

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {  # programs with rules of their own
    "paceline/training/rank.py": "saves at a stop",
    "paceline/training/spare.py": "ended with the launcher that it forks ranks for",
    "paceline/runtime/torchrun_agent.py": "torchrun's own rules",
    "paceline/runtime/device/probe.py": "a part of the plan, ended with it",
    "paceline/__main__.py": "the console script's main",
    "paceline/algorithms/rewards/code_reward.py": "ended by who asked it",
    "paceline/simulate/__main__.py": "a part of verify, ended with it",
    "paceline/evaluation/sharded_chat.py": "its inner function is: main leaves after any error at once",
    "paceline/evaluation/scores/metrics.py": "a part of evaluate, ended with it",
    "paceline/models/loading/list_parameters.py": "a part of the plan, ended with it",
    "paceline/verify/peer_program.py": "another program's Python runs it, without Paceline",
    "paceline/config/render/reference.py": "documentation",
    "paceline/config/backend_files/docs_page.py": "documentation",
    "paceline/plan/model/families_page.py": "documentation",
}

PROGRAM = """
import signal, sys, tempfile, time
for number in (signal.SIGHUP, signal.SIGINT):  # the tests themselves may run under nohup, or behind a script's &
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
from paceline.launch.program import ended
@ended
def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[2]):
        print("up", flush=True)
        while sys.argv[1] == "wait": time.sleep(0.05)  # a signal just before one long sleep would not end it
        if sys.argv[1] == "full": raise OSError(28, "No space left on device", "/data/x")
        if sys.argv[1] == "connection": raise ConnectionResetError(104, "reset")
        if sys.argv[1] == "talk":
            while True: print("x" * 1000)
        if sys.argv[1] == "exit": raise SystemExit(2)
    return 0
sys.exit(main())
"""  # noqa: E501


def begin(mode: str, folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, mode, str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def last_words(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it still writes to both streams until it ends; one that does not end is killed."""
    try:
        return process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


NOTES_BY_KEY = [
    (signal.SIGTERM, 143, "ended by SIGTERM\n"),
    (signal.SIGHUP, 129, "ended by SIGHUP\n"),
    (signal.SIGINT, 130, "interrupted\n"),
]


@pytest.mark.parametrize(("number", "code", "said"), NOTES_BY_KEY)
def test_a_signal_lets_it_clean_up_and_answers_its_code(
    number: int, code: int, said: str, tmp_path: Path
) -> None:
    process = begin("wait", tmp_path)
    process.send_signal(number)
    _, err = last_words(process)
    assert (process.returncode, err) == (code, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code", "said"), NOTES_BY_KEY)
def test_a_signal_while_the_program_is_imported(number: int, code: int, said: str, tmp_path: Path) -> None:
    """torch takes seconds: a Ctrl-C in them is no traceback out of somebody's ``import``."""
    (tmp_path / "heavy.py").write_text("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n")
    begin_with = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    )
    program = (
        f"{begin_with}; import sys; sys.argv = ['-', 'heavy']; from paceline.launch.run_module import main;"
        " sys.exit(main())"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True, env=environ
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(number)
    _, err = last_words(process)
    assert (process.returncode, err) == (code, said)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EndedBySignal(143)])
def test_typer_does_not_swallow_the_sentence(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.cli import main as program

    app = typer.Typer()

    @app.command()
    def verb() -> None:
        raise error

    monkeypatch.setattr(program, "import_module", lambda name: SimpleNamespace(plan=app))
    with pytest.raises(type(error)):
        program.dispatch(["plan"])


def test_a_reader_that_goes_away_ends_it_without_a_word(tmp_path: Path) -> None:
    process = begin("talk", tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = last_words(process)
    assert (process.returncode, err) == (141, "") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("full", 1, "error[program.system_refused] /data/x: the system refused: the disk is full"),
        ("exit", 2, ""),
        ("connection", 1, "ConnectionResetError"),
        ("end", 0, ""),
    ],
)
def test_a_disk_that_refuses_is_named_and_the_rest_is_left_alone(
    mode: str, code: int, words: str, tmp_path: Path
) -> None:
    process = begin(mode, tmp_path)
    _, err = last_words(process)
    assert process.returncode == code and words in err


def test_every_program_ends_by_these_rules_or_says_by_which() -> None:
    bare = set()
    for path in sorted((ROOT / "paceline").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        started = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
        mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        decorated = mains and "program" in [ast.unparse(d) for d in mains[0].decorator_list]
        if started and not decorated:
            bare.add(path.relative_to(ROOT).as_posix())
    assert bare == set(ELSEWHERE)


def test_prepare_takes_its_process_along(tmp_path: Path) -> None:
    """SIGTERM to the verb alone: the process that prepares does not go on without it."""
    flag = tmp_path / "up"
    verb = "import sys; from paceline.cli.process import call; from paceline.launch.program import ended"
    child = f"import time; open({str(flag)!r}, 'w').close(); time.sleep(600)"
    argv = [
        sys.executable,
        "-c",
        f"{verb}; sys.exit(ended(lambda: call('timeit', '-n', '1', sys.argv[1]))())",
        child,
    ]
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)
    deadline = time.monotonic() + 240
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=240) == 143
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(process.pid, 0)
