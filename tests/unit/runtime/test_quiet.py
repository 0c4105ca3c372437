"""Libraries are quiet in a rank: no bars, no word of kernels for packed weights where none are packed."""

from __future__ import annotations

import logging
import logging.handlers
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.process import ROOT
from paceline.runtime.library_noise import quiet_libraries


@pytest.fixture
def library_settings() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    level, bars = logging.getLogger("bitsandbytes").level, transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()
    yield
    logging.getLogger("bitsandbytes").setLevel(level)
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
    before, logger.filters = list(logger.filters), []
    heard = logging.handlers.BufferingHandler(100)
    logger.addHandler(heard)
    try:
        quiet_libraries(quantised=False, checks_weights=checks_weights)
        LlamaForSequenceClassification.from_pretrained(tmp_path)
    finally:
        logger.filters = before
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
    quiet_libraries(quantised=False)
    LlamaForCausalLM.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quantised", [True, False])
def test_kernels_for_packed_weights_are_told_where_weights_are_packed(
    library_settings: None, quantised: bool
) -> None:
    logging.getLogger("bitsandbytes").setLevel(logging.NOTSET)
    quiet_libraries(quantised)
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    assert logger.isEnabledFor(logging.WARNING) is quantised
    assert logger.isEnabledFor(logging.ERROR)


NAMED = ("torchao", "torchao.kernel.intmm", "bitsandbytes.backends.cpu.ops")


def test_what_importing_torchao_says_is_dropped_and_nothing_else(library_settings: None) -> None:
    """torchao itself is heard on its own loggers, by messages of its 0.18."""
    loggers = {name: logging.getLogger(name) for name in NAMED}
    before = {name: list(logger.filters) for name, logger in loggers.items()}
    quiet_libraries(quantised=False)

    def shown(name: str, text: str) -> bool:
        record = loggers[name].makeRecord(name, logging.WARNING, __file__, 1, text, (), None)
        return bool(loggers[name].filter(record))

    try:
        assert not shown("torchao", "Failed to load /x/torchao/_C_mxfp8.so: Could not load this library")
        assert not shown("torchao.kernel.intmm", "Warning: Detected no triton, on systems without Triton …")
        words = "Failed to load CPU gemm_4bit_forward from kernels-community: No module named 'kernels'."
        assert not shown("bitsandbytes.backends.cpu.ops", words)
        assert shown("torchao", "the option block_size is deprecated")
        assert shown("torchao.kernel.intmm", "Failed to load a kernel")
    finally:
        for name, logger in loggers.items():
            logger.filters = before[name]


def test_a_command_that_becomes_a_module_drops_it_too(tmp_path: Path) -> None:
    """``paceline export`` and ``chat`` are not ranks; they are run by ``launch.entered``."""
    (tmp_path / "speaks.py").write_text(
        "import logging\n"
        "logging.getLogger('torchao').warning('Failed to load /x/_C_mxfp8.so: Could not load this library')\n"
        "logging.getLogger('torchao').warning('the option block_size is deprecated')\n"
    )
    argv = [sys.executable, "-m", "paceline.launch.run_module", "speaks"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["the option block_size is deprecated"] and done.stdout == ""
