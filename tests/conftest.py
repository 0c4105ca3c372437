"""Fixtures that every suite shares: a small tokenizer, learnable instruction data, a small model's config,
a runner.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import clock
import pytest
import rewriting
import warm
from support import TINY_LLAMA, Run, run_process, write_rows, write_tokenizer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fresh-processes", action="store_true", help="no process is forked from a warm one (tests/warm.py)"
    )
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="files in another order, and the tests of each"
    )
    parser.addoption("--record-seconds", action="store_true", help="write tests/seconds.json")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(
        config, "workerinput"
    ):  # a worker of xdist ignores Ctrl-C, and so would every process that a test starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        if config.getoption("--record-seconds"):
            config.pluginmanager.register(clock.Recorder())
        if config.getoption("dist", "no") != "no":
            if sys.platform == "linux" and not config.getoption("--fresh-processes"):
                subprocess.Popen = warm.Popen  # type: ignore[misc]  # which xdist starts its workers with
                warm.starting()
            if not sys.dont_write_bytecode:
                rewriting.write_ahead(config, rewriting.collected_files(config))
    # Every 700 new objects it would look through all of torch, of Transformers and of the syntax trees again.
    gc.set_threshold(50_000, 20, 20)
    # Under nohup: what a test starts must hear it all the same.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> clock.Scheduling:
    return clock.Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files stay whole: what their fixtures hold is made once."""
    seed = config.getoption("--random-order")
    if seed is None:
        items[:] = clock.longest_first(items, clock.recorded_seconds())
        return
    draw, files = random.Random(seed), {}  # type: ignore[var-annotated]
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [
        item
        for tests in draw.sample([*files.values()], len(files))
        for item in draw.sample(tests, len(tests))
    ]


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures, which start processes too."""
    fresh = item.config.getoption("--fresh-processes") or item.get_closest_marker("fresh") is not None
    warm.Popen.allowed = not fresh
    subprocess.Popen = warm.Popen  # type: ignore[misc]  # the children of what runs in this process too


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test may not leave an environment variable, a non-daemon thread or a patched Transformers behind."""
    before, threads = dict(os.environ), set(threading.enumerate())
    yield
    changed = {k for k, _ in before.items() ^ os.environ.items()} - {"PYTEST_CURRENT_TEST"}
    ours = {
        k
        for k in changed
        if not k.startswith(
            (
                "KINETO",
                "TORCH",
                "_TORCH",
                "TF_",
                "HF_",
                "TOKENIZERS",
                "KMP",
                "MPL",
                "LC_",
                "CUDA",
                "PYTORCH_NVML",
                "DS_",
            )
        )
    }
    assert not ours, f"environment variables leaked: {sorted(ours)}"
    loading = sys.modules.get("transformers.modeling_utils")
    assert loading is None or loading.PreTrainedModel.tie_weights.__name__ == "tie_weights", (
        "Transformers is left patched: two threads loaded models at once"
    )
    left = [t for t in set(threading.enumerate()) - threads if t.is_alive() and not t.daemon]
    # An executor told to end without waiting (Transformers' loading of weights does so) leaves threads that
    # are about to end.
    for thread in left:
        thread.join(timeout=10)
    left = [t for t in left if t.is_alive()]
    assert not left, f"threads leaked: {left}"


@pytest.fixture(autouse=True)
def products_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, products of 16-bit operands stay in 16 bits on every processor, so that a test's
    numbers and bytes do not depend on the machine; ``models.precision`` computes them in fp32 on those
    without such products.
    """
    if (torch := sys.modules.get("torch")) is not None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})


@pytest.fixture(autouse=True)
def nothing_collected_before_training(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training in this process would look through all that the suite holds, half a second each time."""
    garbage = sys.modules.get("paceline.training.loop.intervals")
    if garbage is not None and request.path.name != "test_garbage.py":
        monkeypatch.setattr(garbage, "gc", SimpleNamespace(**{**vars(gc), "collect": lambda: 0}))


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of about 300 tokens with a chat template that marks the assistant's tokens."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def alpaca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 instruction rows in Alpaca's format."""
    return write_rows(tmp_path_factory.mktemp("data") / "train.json", 60)


@pytest.fixture
def tiny(tmp_path: Path, tokenizer_dir: Path, alpaca_file: Path) -> Callable[..., dict[str, Any]]:
    """A config (as a dict) for a run of seconds; keyword arguments override keys under training."""

    def make(**training: Any) -> dict[str, Any]:
        return {
            "model": {
                "config": {**TINY_LLAMA, "tie_word_embeddings": False},
                "tokenizer": str(tokenizer_dir),
            },
            "data": {"train": str(alpaca_file), "max_length": 96, "cache_dir": str(tmp_path / "cache")},
            "training": {
                "output_dir": str(tmp_path / "run"),
                "max_steps": 8,
                "learning_rate": 1e-3,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "seed": 7,
                **training,
            },
        }

    return make


@pytest.fixture
def paceline(tmp_path: Path) -> Callable[..., Run]:
    """Run ``python -m paceline.cli.main ARGS`` as a user would; a hang is killed with its children after
    ``deadline`` seconds.
    """

    def run(
        *args: str, deadline: float = 300, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Run:
        return run_process([sys.executable, "-m", "paceline.cli.main", *args], deadline, env, cwd or tmp_path)

    return run
