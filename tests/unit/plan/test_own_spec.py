"""A strategy from outside the tree with a spec of its own: it is planned as built-in ones are; a class
alone says that nothing is known of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import H100, LLAMA

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import is_assigned
from paceline.plan.cost.from_plan import predicted_plan
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job, state_form, strategy_spec
from paceline.rules.planning import make_plan
from paceline.strategies.registry import strategy_class

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GIB = 2**30


def plan_of(strategy: str) -> Plan:
    values: dict[str, Any] = {
        "model": {"config": LLAMA, "tokenizer": "none"},
        "data": {"train": "none.jsonl", "max_length": 256},
        "training": {"distributed_strategy": strategy},
    }
    return make_plan(Job(Config.model_validate(values), H100, world_size=8, launcher="spawn", run_dir="none"))


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("custom_strategy", "custom_strategy_spec"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("examples")
def test_a_spec_of_ones_own_is_planned_as_a_built_in_one() -> None:
    own, ddp = plan_of("custom_strategy_spec:SPEC"), plan_of("ddp")
    assert own.memory == ddp.memory and own.memory is not None and own.memory.largest is not None
    mine, theirs = predicted_plan(own, H100), predicted_plan(ddp, H100)
    assert mine is not None and theirs is not None and mine.speed == theirs.speed
    assert state_form("custom_strategy_spec:SPEC") == state_form("ddp")
    assert strategy_class("custom_strategy_spec:SPEC").__name__ == "CompressedDDP"


@pytest.mark.usefixtures("examples")
def test_of_a_class_alone_the_plan_says_that_nothing_is_known() -> None:
    plan = plan_of("custom_strategy:CompressedDDP")
    assert "memory and speed are unknown" in plan.strategy_reason and predicted_plan(plan, H100) is None
    assert plan.memory is not None and plan.memory.largest is None
    assert state_form("custom_strategy:CompressedDDP") != state_form("ddp")
    assert "custom_strategy" not in sys.modules, "a class is not imported where a plan is made"


def test_what_is_assigned_is_told_from_the_source_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    (tmp_path / "house" / "own.py").write_text(
        "import torch\nSPEC: int = 1\na = B = 2\nclass C: ...\n", encoding="utf-8"
    )
    (tmp_path / "house" / "bad.py").write_text("SPEC = (", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_assigned("house.own:SPEC") and is_assigned("house.own:B")
    for name in (
        "house.own:C",
        "house.own:torch",
        "house.bad:SPEC",
        "house.none:SPEC",
        "nowhere.own:SPEC",
        "sys:path",
    ):
        assert not is_assigned(name), name


_STOP_SIGNALS = """
import json, sys
from paceline.plan.strategies.spec import strategy_spec
from paceline.core.errors import ConfigError
told = {}
for name in ("custom_strategy_spec:SPEC", "with_torch:SPEC"):
    try:
        told[name] = [strategy_spec(name).simulated.name, "torch" in sys.modules]
    except ConfigError as error:
        told[name] = [error.diagnostics[0].code, True]
print(json.dumps(told))
"""


def test_a_spec_brings_no_torch_to_the_plan(tmp_path: Path) -> None:
    source = "import torch\nfrom paceline.plan.strategies.replicated import DDP\nSPEC = DDP\n"
    (tmp_path / "with_torch.py").write_text(source, encoding="utf-8")
    path = os.pathsep.join([str(EXAMPLES), str(tmp_path), str(EXAMPLES.parent)])
    done = subprocess.run(
        [sys.executable, "-c", _STOP_SIGNALS],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    told = json.loads(done.stdout)
    assert told == {
        "custom_strategy_spec:SPEC": ["MODULE_AND_STATES", False],
        "with_torch:SPEC": ["strategy.spec_torch", True],
    }


def test_a_module_of_a_spec_that_raises_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("SPEC = 1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        plan_of("raises:SPEC")
    assert caught.value.diagnostics[0].code == "core.target_module"
    assert strategy_spec("nowhere:SPEC").implementation == ""
