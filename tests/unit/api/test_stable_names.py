"""The names that programs may rely on: each is there, has these parameters, and is imported when used."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
import paceline.extend
from paceline.core.registry import load_attr

#: Name → its parameters. A name or parameter that goes away, or moves, needs a new major version.
STABLE = {
    "checkpoints": "run",
    "evaluate": (
        "models data *overrides checkpoints metrics losses samples seed judge batch_size nproc strategy dtype"
        " quiet"
    ),
    "export": "run to *checkpoint dtype role merge overwrite exporters max_shard_size",
    "generate": "model prompts *system max_new_tokens temperature top_p top_k batch_size",
    "load_config": "config overrides",
    "plan": "config *overrides hardware nproc imports",
    "train": (
        "config *overrides algorithm strategy dataset eval_dataset converter callbacks trackers metrics"
        " rewards nproc resume on_event quiet"
    ),
    "verify": "config *overrides nproc against steps probe to",
}
#: Class → its public attributes
CLASSES = {
    "Checkpoint": "best bytes latest path problem step",
    "CheckpointError": "diagnostics exit_code",
    "ConfigError": "diagnostics exit_code",
    "DataError": "diagnostics exit_code",
    "Diagnostic": "code evidence found from_json hint render severity to_json what where",
    "Evaluation": "loss name of path perplexity rows scores step token_accuracy tokens",
    "JobConfig": "config source",
    "PacelineError": "diagnostics exit_code",
    "PlannedRun": "forecast plan text to_json warnings",
    "Run": "arrays checkpoints diagnostics events export frame history open outcome path plan result",
}


def _parameters(function: object) -> str:
    found, only = [], False
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        star = "*" if one.kind is one.KEYWORD_ONLY and not only else ""
        only = only or bool(star)
        found.append(star + one.name)
    return " ".join(found)


def _function(name: str) -> object:
    from importlib import import_module

    return getattr(import_module(vars(paceline)["_HOMES"][name]), name)


def test_the_library_has_these_names_and_no_others() -> None:
    assert sorted(paceline.__all__) == sorted({*STABLE, *CLASSES, "__version__"})
    assert set(paceline.__all__) <= set(dir(paceline))


@pytest.mark.parametrize("name", STABLE)
def test_a_function_takes_these_arguments(name: str) -> None:
    assert _parameters(_function(name)) == STABLE[name]
    assert callable(getattr(paceline, name)) and inspect.getdoc(_function(name))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_these_attributes(name: str) -> None:
    cls = getattr(paceline, name)
    own = {n for n in dir(cls) if not n.startswith("_")} - set(dir(Exception))
    fields = set(getattr(cls, "__dataclass_fields__", ()))
    given = {"diagnostics"} if issubclass(cls, Exception) else set()
    assert " ".join(sorted(own | fields | given)) == CLASSES[name]


#: What docs and examples handed out before ``paceline.extend``: configs and programs have it.
EARLIER = {
    "paceline.algorithms.base:Algorithm": "Algorithm",
    "paceline.algorithms.sft:SFT": "SFT",
    "paceline.core.diagnostics:Code": "Code",
    "paceline.data.kinds.base:RowKind": "RowKind",
    "paceline.generation.engine:GenerationEngine": "GenerationEngine",
    "paceline.plan.algorithms.base:AlgorithmSpec": "AlgorithmSpec",
    "paceline.plan.strategies.base:StrategySpec": "StrategySpec",
    "paceline.plan.strategies.replicated:DDP": "DDP_SPEC",
    "paceline.protocols.batch:Batch": "Batch",
    "paceline.protocols.roles:Role": "Role",
    "paceline.strategies.base:Strategy": "Strategy",
    "paceline.strategies.ddp:DDP": "DDP",
    "paceline.strategies.replicas:ParallelInference": "ParallelInference",
    "paceline.training.base_trainer:BaseTrainer": "BaseTrainer",
    "paceline.training.loss_watchdog:LossWatchdog": "LossWatchdog",
}


@pytest.mark.parametrize("name", EARLIER)
def test_a_name_that_was_handed_out_still_works(name: str) -> None:
    assert load_attr(name) is getattr(paceline.extend, EARLIER[name])


def test_every_name_to_extend_is_there_and_only_these_stand_in_docs_and_examples() -> None:
    assert all(getattr(paceline.extend, name) is not None for name in paceline.extend.__all__)
    root = Path(__file__).resolve().parents[3]
    pages = [*root.glob("docs/*.md"), *root.glob("examples/*.py"), *root.glob("README*.md")]
    pattern = re.compile(
        r"(?:from|import) (paceline\.(?!extend)[\w.]+)|(paceline\.(?!extend)[\w.]+:[A-Z]\w+)"
    )
    assert [(p.name, found) for p in pages for found in pattern.findall(p.read_text("utf-8"))] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trian"):
        paceline.trian  # type: ignore[attr-defined]  # noqa: B018


def test_a_room_of_a_functions_name_is_the_function_too_whichever_comes_first() -> None:
    program = (
        "import paceline.plan.plan, paceline\n"
        "assert paceline.plan.plan.Plan and callable(paceline.plan)\n"
        "from paceline import plan, verify\n"
        "import paceline.verify.sides as sides\n"
        "assert callable(plan) and callable(verify) and sides.TOLERANCES\n"
        "try:\n    plan({'model': {}, 'training': {'seed': 'x'}})\n"
        "except paceline.ConfigError as error:\n    print(error.diagnostics[0].where)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "argument training.seed"


def test_importing_the_library_costs_little_and_imports_no_torch() -> None:
    """CPU time of this process's own import, not the clock's: 0.1 s are asked, about 0.005 are used."""
    program = (
        "import sys, time\nbefore = time.process_time()\nimport paceline.extend\n"
        "spent = time.process_time() - before\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'datasets'} & set(sys.modules)\n"
        "print(spent < 0.1, sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


def test_completion_offers_the_stable_names_alone() -> None:
    assert dir(paceline) == sorted({*STABLE, *CLASSES, "__version__"})


def test_the_version_is_the_projects() -> None:
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{paceline.__version__}"' in text
