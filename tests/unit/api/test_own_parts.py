"""Parts of one's own as arguments: names travel, importable objects travel by name, others are refused.

Installed packages register names.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import paceline
from paceline.algorithms.rewards.builtin import exact_match
from paceline.algorithms.rewards.scoring import MODEL, REWARDS
from paceline.api.arguments import importable_name, named_parts
from paceline.api.callbacks import split_callbacks
from paceline.config.sections.rollout import BUILT_IN_REWARDS
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import EXTENSIONS
from paceline.launch.process_spec import LaunchSpec
from paceline.launch.supervision.child_rank import run_beneath
from paceline.launch.supervision.supervisor import run
from paceline.plan.algorithms.spec import AlgorithmSpec
from paceline.runlog.events import Event

ENTRY_POINTS = """
[paceline.callbacks]
watcher = their.parts:Watcher
[paceline.trackers]
ledgerbook = their.parts:Book
tensorboard = their.parts:Never
[paceline.rewards]
politeness = their.parts:polite
[paceline.algorithms]
newest = their.parts:SPEC
[paceline.strategies]
quickest = their.parts:Strategy
[paceline.datasets]
theirs = their.parts:rows
[paceline.converters]
flatter = their.parts:flat
[paceline.metrics]
closeness = their.parts:close
[paceline.exporters]
onnx = their.parts:to_onnx
"""


def test_an_installed_package_gives_names_to_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "theirs", ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    config = paceline.load_config(
        {
            "model": {"name_or_path": "m"},
            "data": {"train": "theirs,t.json", "converter": "flatter"},
            "training": {
                "callbacks": "watcher",
                "report_to": ["tensorboard", "ledgerbook"],
                "eval_metrics": "exact_match,closeness",
                "exporters": ["gguf", "onnx"],
            },
        }
    ).config
    assert [one.path for one in config.data.train] == ["their.parts:rows", "t.json"]
    assert config.data.converter == "their.parts:flat"
    config = config.training
    assert config.eval_metrics == ("exact_match", "their.parts:close")
    assert config.exporters == ("gguf", "their.parts:to_onnx")
    assert [one.name for one in config.callbacks] == ["their.parts:Watcher"]
    assert config.report_to == ("tensorboard", "their.parts:Book"), "no package takes a name of ours"
    from paceline.config.sections.training import TrainingSection

    section = TrainingSection.model_validate(
        {
            "algorithm": "newest",
            "distributed_strategy": "quickest",
            "rollout": {"rewards": "politeness, code"},
        }
    )
    assert (section.algorithm, section.distributed_strategy) == ("their.parts:SPEC", "their.parts:Strategy")
    assert section.rollout is not None
    assert [one.name for one in section.rollout.rewards] == ["their.parts:polite", "code"]
    asked = {line.strip("[]").partition(".")[2] for line in ENTRY_POINTS.splitlines() if line[:1] == "["}
    assert asked == set(EXTENSIONS), "every kind is asked here"
    with pytest.raises(ConfigError, match=r"registers in paceline\.converters"):
        paceline.load_config({"data": {"converter": "rounder"}})
    installed(tmp_path, "others", "[paceline.callbacks]\nwatcher = elsewhere:Watcher\n")
    with pytest.raises(ConfigError, match="register 'watcher' as elsewhere:Watcher and as"):
        paceline.load_config({"training": {"callbacks": "watcher"}})
    assert len(entry_points(group="paceline.callbacks", name="watcher")) == 2


def test_the_page_lists_every_kind_with_its_key_argument_and_group() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/library.md").read_text()
    twin = page.replace("library.md", "library.zh-CN.md")
    for kind, one in EXTENSIONS.items():
        function, _, argument = one.argument.rstrip(")").partition("(")
        row = next(line for line in page.splitlines() if line.endswith(f"| `paceline.{kind}` |"))
        assert row.startswith(f"| {one.words} |") and one.form.split()[0] in row
        assert all(f"`{key.strip()}" in row for key in one.key.split(",")), row
        assert f"`{argument}" in row
        assert argument.rstrip("=") in inspect.signature(getattr(paceline, function)).parameters
        assert f"`paceline.{kind}` |" in twin


def installed(folder: Path, name: str, text: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


def test_the_names_of_rewards_are_those_of_the_table() -> None:
    assert set(BUILT_IN_REWARDS) == {*REWARDS.names(), MODEL}


def test_what_the_ranks_cannot_import_is_refused_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner(completions: Sequence[str]) -> list[float]:
        return []

    module = ModuleType("my_specs")
    module.SPEC = AlgorithmSpec(implementation="paceline.algorithms.supervised.sft:SFT")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_specs", module)
    where = "paceline.algorithms.rewards.builtin:exact_match"
    assert named_parts(["numeric", exact_match, {"name": "code"}], "rewards") == [
        "numeric",
        where,
        {"name": "code"},
    ]
    assert named_parts(exact_match, "rewards") == [where] and named_parts(None, "rewards") is None
    assert importable_name(module.SPEC, "algorithm") == "my_specs:SPEC"
    script = ModuleType("__main__")
    monkeypatch.setattr(inner, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    unknown = AlgorithmSpec(implementation="paceline.algorithms.preference.dpo:DPO")
    for part in (inner, lambda completions: [1.0], unknown):
        with pytest.raises(ConfigError, match="next to the script") as caught:
            paceline.train({}, rewards=[part]) if part is not unknown else paceline.train({}, algorithm=part)
        assert caught.value.diagnostics[0].code == "api.not_importable"


def test_callbacks_are_names_for_the_ranks_and_objects_for_this_process() -> None:
    def heard(event: Event) -> None: ...

    item: dict[str, Any] = {"name": "a:B", "options": {"until": 3}}
    assert split_callbacks(["a:B", item, heard]) == (["a:B", item], [heard])
    assert split_callbacks(None) == (None, []) and split_callbacks("a:B") == (["a:B"], [])
    for wrong, words in ((3, "no callback"), (dict, "a class is given")):
        with pytest.raises(ConfigError, match=words):
            split_callbacks([wrong])


ASKED = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(75))
open(sys.argv[1], 'w')
while True: time.sleep(0.05)
"""


def test_a_wish_of_this_process_stops_the_ranks_after_their_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, lines = tmp_path / "ready", list[str]()
    argv = (sys.executable, "-c", ASKED, str(ready))
    spec = LaunchSpec(argv, {}, rank=0)
    code = run([spec], environ=os.environ, report=lines.append, requests_stop=ready.exists)
    assert code == 75 and lines == ["stopping after this step, with a checkpoint"]
    ready.unlink()
    monkeypatch.setattr("paceline.launch.supervision.child_rank.worker_argv", lambda *words: argv)
    assert run_beneath([], os.environ, requests_stop=ready.exists) == (75, None)
