"""A spec of one's own that is wrong: options that it does not declare, and methods that raise or return
nothing, are each one error at the line that names them, whichever method it is.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.diagnostics import Severity
from paceline.core.errors import ConfigError
from paceline.launch.preflight.plan_job import planned
from paceline.plan.algorithms.spec import AlgorithmSpec
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.strategies.replicated import DDP
from paceline.plan.strategies.spec import StrategySpec, strategy_spec
from paceline.plan.user_code import guarded
from paceline.rules import check
from paceline.rules.rule import Facts

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
SOURCE = """
from dataclasses import dataclass
from paceline.plan.algorithms.spec import AlgorithmSpec
from paceline.plan.strategies.replicated import DDP

@dataclass(frozen=True)
class Mine({base}):
    def {method}(self, *given):
        {body}

SPEC = Mine(implementation="nowhere:Class")
"""
STRATEGY, ALGORITHM = "training.distributed_strategy", "training.algorithm"


def public(spec: type) -> list[str]:
    return [
        name
        for name, member in vars(spec).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]


def divided(*given: Any) -> Any:
    return 1 / 0


@pytest.mark.parametrize(
    ("base", "method"), [(base, name) for base in (AlgorithmSpec, StrategySpec) for name in public(base)]
)
def test_whatever_method_raises_it_is_one_error_with_the_users_line(base: type, method: str) -> None:
    is_property = isinstance(inspect.getattr_static(base, method), property)
    mine = type("Mine", (base,), {method: property(divided) if is_property else divided})
    with pytest.raises(ConfigError) as caught:
        found = getattr(guarded(mine(name="m:SPEC"), ALGORITHM), method)
        found(*([None] * 9))
    [wrong] = caught.value.diagnostics
    line = divided.__code__.co_firstlineno + 1
    assert (wrong.code, wrong.where) == ("spec.check", ALGORITHM) and method in wrong.what
    assert wrong.found == f"ZeroDivisionError: division by zero ({__file__}:{line})"


def test_a_guarded_spec_is_the_spec_else() -> None:
    spec = guarded(replace(DDP, name="m:SPEC"), STRATEGY)
    assert isinstance(spec, type(DDP)) and repr(spec) == repr(replace(DDP, name="m:SPEC"))
    assert spec == guarded(replace(DDP, name="m:SPEC"), STRATEGY) and replace(spec, name="b").name == "b"


def loaded_of(tmp_path: Path, training: str) -> Any:
    file = tmp_path / "own.yaml"
    data = "{train: none.jsonl, max_length: 256}"
    lines = f"model: {{config: {LLAMA}, tokenizer: none}}\ndata: {data}\ntraining:\n"
    file.write_text(lines + training, encoding="utf-8")
    return load_config(str(file), ())


RAISES = "raise KeyError('beta')"


@pytest.mark.parametrize(
    ("key", "base", "method", "body"),
    [
        (ALGORITHM, "AlgorithmSpec", "models", RAISES),
        (ALGORITHM, "AlgorithmSpec", "check_plan", f"{RAISES}; yield"),
        (ALGORITHM, "AlgorithmSpec", "generation", RAISES),
        (ALGORITHM, "AlgorithmSpec", "models", "pass"),
        (STRATEGY, "type(DDP)", "states", RAISES),
        (STRATEGY, "type(DDP)", "mesh", RAISES),
        (STRATEGY, "type(DDP)", "options", "pass"),
        (STRATEGY, "type(DDP)", "check", "pass"),
    ],
)
def test_it_stands_at_the_line_that_names_the_spec(
    key: str, base: str, method: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"guard_{method}_{len(body)}"
    (tmp_path / f"{module}.py").write_text(
        SOURCE.format(base=base, method=method, body=body), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = loaded_of(tmp_path, f"  {key.partition('.')[2]}: {module}:SPEC\n")
    with pytest.raises(ConfigError) as caught:
        planned(loaded, cluster=cluster_of("8xH100"), imports=False)
    [wrong] = caught.value.diagnostics
    line = 9 if body != "pass" else 8  # of the source
    assert wrong.where == f"{tmp_path / 'own.yaml'}:4"
    assert wrong.found.endswith(f"({tmp_path / module}.py:{line})") and f"{module}:SPEC" in wrong.what


OPTIONS = """
from dataclasses import replace
from paceline.plan.strategies.replicated import DDP
OPTIONS = {"dtype": "float16", "rate": 0.5}
SPEC = replace(DDP, alone="", implementation="nowhere:Class", strategy_options=OPTIONS)
"""


@pytest.mark.parametrize(
    ("name", "options", "places"),
    [
        ("own_options:SPEC", "{dtype: bfloat16, rate: 1}", []),
        ("own_options:SPEC", "\n    dtype: 16\n    rat: 0.1", ["6", "7"]),
        ("nowhere:Class", "{rat: 0.1}", []),
    ],
)
def test_options_of_a_strategy_are_those_of_its_spec(
    name: str, options: str, places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_options.py").write_text(OPTIONS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = loaded_of(tmp_path, f"  distributed_strategy: {name}\n  strategy_options: {options}\n")
    found = check(loaded.config, Facts(), provenance=loaded.provenance)
    wrong = [(d.code, d.where) for d in found if d.severity is Severity.ERROR]
    assert wrong == [("strategy.options", f"{tmp_path / 'own.yaml'}:{place}") for place in places]
    if name == "own_options:SPEC":
        assert strategy_spec(name).strategy_options == {"dtype": "float16", "rate": 0.5}
