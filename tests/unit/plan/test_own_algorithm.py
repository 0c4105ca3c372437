"""An algorithm from outside the tree: planned by its spec, refused by name where it cannot be, its options
checked, its arithmetic that of its formula.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import H100, LLAMA

from paceline.algorithms.algorithm import algorithm_class
from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.diagnostics import Severity
from paceline.core.errors import ConfigError
from paceline.data.rows.kinds.base import RowKind, row_kind
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.roles import Output, Role
from paceline.rules import check
from paceline.rules.planning import make_plan
from paceline.rules.rule import Facts

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OWN = "custom_algorithm_spec:SPEC"
GIB = 2**30


def config_of(algorithm: str, **options: Any) -> Config:
    values: dict[str, Any] = {
        "model": {"config": LLAMA, "tokenizer": "none"},
        "data": {"train": "none.jsonl", "max_length": 256},
        "training": {"algorithm": algorithm, "algorithm_options": options},
    }
    return Config.model_validate(values)


def plan_of(algorithm: str) -> Plan:
    return make_plan(Job(config_of(algorithm), H100, world_size=8, launcher="spawn", run_dir="none"))


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules beside the tree."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("custom_algorithm", "custom_algorithm_spec"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_it_is_planned_by_its_spec_and_its_class_is_not_imported() -> None:
    own, sft = plan_of(OWN), plan_of("sft")
    assert own.algorithm == OWN and (own.memory, own.batch) == (sft.memory, sft.batch)
    assert "custom_algorithm" not in sys.modules, "the class is imported where it trains"
    spec = algorithm_spec(OWN)
    assert spec.options_of(own.config.training) == {"gamma": 2.0} and not spec.on_policy
    assert spec.options_of(config_of(OWN, gamma=1).training) == {"gamma": 1}


def test_its_loss_is_its_formula_and_without_focus_that_of_sft() -> None:
    focal, role = algorithm_class(OWN), Role.POLICY
    logprobs = torch.log(torch.tensor([0.9, 0.5, 0.01]))
    given = {Output.LOGPROBS.value: logprobs}
    (plain,) = focal(gamma=0.0).losses(role, given, None).values()  # type: ignore[call-arg,arg-type]
    (other,) = focal(gamma=2.0).losses(role, given, None).values()  # type: ignore[call-arg,arg-type]
    assert plain.item() == pytest.approx(-logprobs.sum().item())
    assert other.item() == pytest.approx(
        sum(-((1 - p) ** 2) * torch.log(torch.tensor(p)).item() for p in (0.9, 0.5, 0.01))
    )
    assert frozenset(map(Output, algorithm_spec(OWN).outputs)) == focal(gamma=1.0).required_outputs(
        role, training=True
    )  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("algorithm", "options", "severity"),
    [
        (OWN, {"gama": 1.0}, Severity.ERROR),
        (OWN, {"gamma": "much"}, Severity.ERROR),
        (OWN, {"gamma": True}, Severity.ERROR),
        ("sft", {"gamma": 1.0}, Severity.WARNING),
        (OWN, {"gamma": 3}, None),
    ],
)
def test_its_options_are_those_of_its_spec(
    algorithm: str, options: dict[str, Any], severity: Severity | None
) -> None:
    found = [
        d
        for d in check(config_of(algorithm, **options), facts=Facts(), starting=True)
        if d.code == "algorithm.options"
    ]
    assert [d.severity for d in found] == ([severity] if severity else [])


def written(tmp_path: Path, training: str, *overrides: str) -> list[tuple[str, str]]:
    """(code, place) of each error in a file with these lines of ``training``."""
    file = tmp_path / "own.yaml"
    lines = f"model: {{config: {LLAMA}, tokenizer: none}}\ndata: {{train: none.jsonl}}\ntraining:\n{training}"
    file.write_text(lines, encoding="utf-8")
    loaded = load_config(str(file), overrides)
    found = check(loaded.config, Facts(), provenance=loaded.provenance)
    return [(d.code, d.where.removeprefix(f"{file}:")) for d in found if d.severity is Severity.ERROR]


def test_an_option_is_refused_at_its_own_line(tmp_path: Path) -> None:
    own = f"  algorithm: {OWN}\n  algorithm_options:\n    gamma: 1.0\n    gama: 2\n"
    assert written(tmp_path, own) == [("algorithm.options", "7")]
    given = "training.algorithm_options.gamma=x"
    found = [("algorithm.options", f"command line {given}"), ("algorithm.options", "7")]
    assert written(tmp_path, own, given) == found
    whole = "training.algorithm_options={gamma: 1, other: 2}"
    assert written(tmp_path, own, whole) == [("algorithm.options", f"command line {whole}")]


OWN_CHECK = """
from dataclasses import dataclass
from paceline.core.diagnostics import Code
from paceline.plan.algorithms.spec import AlgorithmSpec

WRONG = Code("mine.wrong", "A weight.")

@dataclass(frozen=True)
class Mine(AlgorithmSpec):
    def check(self, job):
        if self.options_of(job.config.training)["alpha"] > 1:
            yield job.problem(WRONG, "too much", "training.algorithm_options.alpha", "lora", hint="alpha: 1.0")
        if job.config.training.gradient_checkpointing:
            raise KeyError("beta")

SPEC = Mine(options={"alpha": 0.5}, implementation="nowhere:Class")
"""  # noqa: E501


def test_a_check_of_ones_own_names_options_and_sections_and_its_failure_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "checked_alpha.py").write_text(OWN_CHECK, encoding="utf-8")
    own = "  algorithm: checked_alpha:SPEC\n"
    assert written(tmp_path, f"{own}  algorithm_options:\n    alpha: 2.0\n") == [("mine.wrong", "6")]
    alpha = "training.algorithm_options.alpha=3"
    found = [("mine.wrong", f"command line {alpha} and command line lora.r=4")]
    assert written(tmp_path, own, alpha, "lora.r=4") == found
    assert written(tmp_path, f"{own}  gradient_checkpointing: true\n") == [("spec.check", "4")]
    mistyped = f"{own}  algorithm_options: {{alpha: x}}\n"
    assert written(tmp_path, mistyped) == [("algorithm.options", "5")], "its check may trust the types"


SPEC = (
    "from paceline.plan.algorithms.spec import AlgorithmSpec\nSPEC = AlgorithmSpec(implementation={!r},"
    " rows={!r})\n"
)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("SPEC = 1 / 0\n", "core.target_module"),
        ("OTHER = 1\n", "core.target_attr"),
        ("SPEC = 1\n", "algorithm.no_spec"),
        (SPEC.format("pathlib:Path", "documents"), "algorithm.not_an_algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused_by_name(source: str, code: str, tmp_path: Path) -> None:
    name = f"wrong_{code.partition('.')[2]}"
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        algorithm_class(f"{name}:SPEC")
    assert [(d.code, d.where) for d in caught.value.diagnostics] == [(code, "training.algorithm")]


def test_a_misspelt_name_is_refused_and_an_own_one_keeps_its_case() -> None:
    assert config_of("Some.Module:SPEC").training.algorithm == "Some.Module:SPEC"
    for wrong in ("sftt", "a:b:c", "a b:c", ":SPEC"):
        with pytest.raises(ValueError, match="module:SPEC"):
            config_of(wrong)


KIND = """
from paceline.data.rows.kinds.base import Documents

class Mine(Documents):
    columns = ("weight",)

KIND = Mine()
"""


CHECKED = """
from dataclasses import dataclass
from paceline.core.diagnostics import Code
from paceline.extend import {1}

NO_RECOMPUTE = Code("mine.no_recompute", "It keeps its activations.")

@dataclass(frozen=True)
class Mine({1}):
    def check(self, job):
        if job.config.training.gradient_checkpointing:
            yield job.problem(NO_RECOMPUTE, "it keeps them", "training.gradient_checkpointing", hint="false")

SPEC = Mine(implementation="x:Y")
"""


@pytest.mark.parametrize(
    ("key", "room", "base"),
    [("algorithm", "algorithms", "AlgorithmSpec"), ("distributed_strategy", "strategies", "StrategySpec")],
)
def test_a_spec_of_ones_own_says_what_it_cannot_be_combined_with(
    key: str, room: str, base: str, tmp_path: Path
) -> None:
    (tmp_path / f"checked_{room}.py").write_text(CHECKED.format(room, base), encoding="utf-8")
    for asked in (True, False):
        training = {key: f"checked_{room}:SPEC", "gradient_checkpointing": asked}
        config = Config.model_validate({"data": {"train": "none.jsonl"}, "training": training})
        found = [(d.code, d.found) for d in check(config, facts=Facts()) if d.code.startswith("mine.")]
        assert found == ([("mine.no_recompute", "gradient_checkpointing: true")] if asked else [])


def test_a_strategy_of_ones_own_that_cannot_be_had_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "broken_strategy.py").write_text("SPEC = 1 / 0\n", encoding="utf-8")
    values = config_of("sft").model_dump()
    values["training"]["distributed_strategy"] = "broken_strategy:SPEC"
    with pytest.raises(ConfigError) as caught:
        make_plan(Job(Config.model_validate(values), H100, world_size=8, launcher="spawn", run_dir="none"))
    assert [d.code for d in caught.value.diagnostics] == ["core.target_module"]


def test_a_kind_of_row_of_ones_own_has_its_source_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(KIND, encoding="utf-8")
    (tmp_path / "own_rows_spec.py").write_text(SPEC.format("x:Y", "own_rows:KIND"), encoding="utf-8")
    spec = algorithm_spec("own_rows_spec:SPEC")
    kind = row_kind(spec.rows)
    assert isinstance(kind, RowKind) and spec.measured and not spec.scores_answers
    before = kind.identity()
    (tmp_path / "own_rows.py").write_text(KIND + "\n# changed\n", encoding="utf-8")
    assert kind.identity() != before and row_kind("documents").identity() == row_kind("documents").identity()


def test_a_spec_brings_no_torch_to_the_plan(tmp_path: Path) -> None:
    (tmp_path / "with_torch.py").write_text("import torch\n" + SPEC.format("x:Y", "pairs"), encoding="utf-8")
    ask = (
        "import sys\nfrom paceline.plan.algorithms.spec import algorithm_spec as"
        " s\nprint(s('custom_algorithm_spec:SPEC').measured, 'torch' in sys.modules)\ns('with_torch:SPEC')\n"
    )
    path = os.pathsep.join([str(EXAMPLES), str(tmp_path), str(EXAMPLES.parent)])
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.split() == ["True", "False"] and "algorithm.spec_torch" in done.stderr


@pytest.mark.parametrize("old", ["ask", "consulted", "informed", "watched"])
def test_a_name_that_training_no_longer_reads_is_refused(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics under an old name would be missing from the log without a word."""
    from paceline.algorithms.supervised.sft import SFT

    monkeypatch.setattr(SFT, old, None, raising=False)
    with pytest.raises(ConfigError, match=f"algorithm.not_an_algorithm(.|\n)*rename {old} to"):
        algorithm_class("sft")
