"""What libraries log, warn and draw stays off the console of our programs; ``--verbose`` shows it."""

from __future__ import annotations

import ast
import logging
import logging.handlers
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.process import ROOT
from paceline.runlog.library_lines import is_library, kept_from_console, listen
from paceline.runtime.library_noise import quiet_libraries

#: A package of others: it logs when it is imported, and later.
NOISY = """
import logging, warnings
early, kernels = logging.getLogger("noisy.early"), []
def speak():
    early.warning("the kernel is missing")
    logging.getLogger("noisy.late").warning("torch_dtype is deprecated")
    logging.warning("on the root logger")
    warnings.warn("an import is deprecated", FutureWarning)
    late = logging.getLogger("noisy.own")
    late.propagate = False
    late.addHandler(logging.StreamHandler())
    late.warning("by a handler of its own")
    late.error("an error is shown")
speak()
"""
MAIN = """
import logging, warnings
import noisy
noisy.speak()
logging.getLogger("mine").warning("a reward of mine warns")
warnings.warn("and so")
"""


@pytest.fixture
def library_settings() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()
    yield
    transformers_logging.enable_progress_bar() if bars else transformers_logging.disable_progress_bar()


@pytest.mark.parametrize("checks_weights", [True, False])
def test_a_load_report_is_shown_only_where_nobody_else_looks_at_missing_weights(
    tmp_path: Path, library_settings: None, checks_weights: bool
) -> None:
    """The report itself, by the installed Transformers: its logger and its words may change."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    logger = logging.getLogger("transformers.modeling_utils")
    heard = logging.handlers.BufferingHandler(100)
    logger.addHandler(heard)
    try:
        with kept_from_console({}):
            quiet_libraries(checks_weights=checks_weights)
            LlamaForSequenceClassification.from_pretrained(tmp_path)
    finally:
        logger.removeHandler(heard)
    assert any("LOAD REPORT" in record.getMessage() for record in heard.buffer) is not checks_weights


def test_loading_a_model_says_nothing(
    tmp_path: Path, library_settings: None, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    capfd.readouterr()
    LlamaForCausalLM.from_pretrained(tmp_path)
    assert "Loading weights" in capfd.readouterr().err  # what is silenced
    quiet_libraries()
    LlamaForCausalLM.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("device", [True, False])
def test_a_missing_kernel_is_shown_where_a_device_could_run_it(
    device: bool, library_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device)
    heard = logging.handlers.BufferingHandler(100)
    hub_kernels.logger.addHandler(heard)
    path = str(hub_kernels.__file__)
    try:
        with kept_from_console({}):
            quiet_libraries()
            record = hub_kernels.logger.makeRecord(
                hub_kernels.logger.name, logging.WARNING, path, 1, "slow", (), None
            )
            hub_kernels.logger.handle(record)
    finally:
        hub_kernels.logger.removeHandler(heard)
    assert bool(heard.buffer) is device


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "noisy.py").write_text(NOISY)
    (tmp_path / "speaks.py").write_text(MAIN)
    return {**os.environ, "PYTHONPATH": f"{installed}:{tmp_path}:{ROOT}"}


def lines_of(environment: dict[str, str]) -> list[str]:
    argv = [sys.executable, "-m", "paceline.launch.run_module", "speaks"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_program_prints_no_line_of_a_library_but_its_errors(environment: dict[str, str]) -> None:
    shown = lines_of(environment)
    errors = [line for line in shown if line == "an error is shown"]
    assert len(errors) == 3  # its second handler prints each once more
    mine = [line for line in shown if line not in errors]
    assert mine[0].endswith("a reward of mine warns") and mine[1].endswith("speaks.py:6: UserWarning: and so")
    assert len(mine) == 3  # the warning's line of source is the third


@pytest.mark.parametrize("request_", [{"PACELINE_VERBOSE": "1"}, {"TRANSFORMERS_VERBOSITY": "info"}])
def test_all_is_shown_on_request(environment: dict[str, str], request_: dict[str, str]) -> None:
    shown = "\n".join(lines_of({**environment, **request_}))
    for text in ("kernel is missing", "torch_dtype", "root logger", "an import is deprecated", "own"):
        assert text in shown


def test_every_program_passes_through_that_door() -> None:
    """``python -m`` of any file: its ``main`` is redacted, which keeps libraries' lines from the console."""
    programs = {}
    for path in (ROOT / "paceline").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "\nif __name__ ==" in text:
            decorators = {
                node.id
                for function in ast.walk(ast.parse(text))
                if isinstance(function, ast.FunctionDef)
                for node in function.decorator_list
                if isinstance(node, ast.Name)
            }
            programs[path.relative_to(ROOT / "paceline").as_posix()] = decorators & {"program", "redacted"}
    assert len(programs) > 25
    assert sorted(name for name, door in programs.items() if not door) == WITHOUT_LIBRARIES


#: They print pages of the documentation, call the ``main`` of another file, or run where Paceline is not.
WITHOUT_LIBRARIES = [
    *("__main__.py", "config/backend_files/docs_page.py", "config/render/reference.py"),
    *("plan/model/families_page.py", "verify/peer_program.py"),
]


def test_a_log_file_gets_what_the_console_does_not_from_before_it_was_open(tmp_path: Path) -> None:
    file = str(tmp_path / "site-packages" / "noisy.py")
    logger = logging.getLogger("noisy.of.test")
    written: list[tuple[str, str]] = []

    def log(text: str, level: int = logging.WARNING) -> None:
        logger.handle(logger.makeRecord(logger.name, level, file, 1, text, (), None))

    with kept_from_console({}):
        log("early")
        listen(lambda text, level: written.append((text, level)))
        log("late")
        log("for authors", logging.INFO)
        log("an error has its own way", logging.ERROR)
        listen(None)
        log("after the end")
    log("outside")
    of = "noisy.of.test"
    assert written == [
        (f"{of}: early", "warning"),
        (f"{of}: late", "warning"),
        (f"{of}: for authors", "debug"),
    ]


def test_what_counts_as_a_library() -> None:
    import torch

    assert is_library(torch.__file__) and is_library(ast.__file__) and is_library(str(ROOT / "paceline/x.py"))
    assert not is_library(str(ROOT / "examples/custom_trainer.py")) and not is_library("/home/me/rewards.py")
