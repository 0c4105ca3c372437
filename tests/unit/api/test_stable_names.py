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
from paceline.core.plugins import moved
from paceline.core.plugins.tables import load_attr

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
    "migrate": "path *to force",
    "plan": "config *overrides hardware nproc imports",
    "rehearse": "config *overrides nproc steps limit to",
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


#: What docs, examples and importers handed out before ``paceline.extend``: configs and programs have it. The
#: package's name is put before it below, so that no move of modules rewrites it.
EARLIER = {
    "algorithms.base:Algorithm": "Algorithm",
    "algorithms.rewards.sample:Sample": "Sample",
    "algorithms.sft:SFT": "SFT",
    "algorithms.sft:TERM": "SFT_TERM",
    "core.diagnostics:Code": "Code",
    "core.diagnostics:Diagnostic": "Diagnostic",
    "core.diagnostics:Severity": "Severity",
    "data.kinds.base:RowKind": "RowKind",
    "generation.engine:GenerationEngine": "GenerationEngine",
    "plan.algorithms.base:AlgorithmSpec": "AlgorithmSpec",
    "plan.strategies.base:StrategySpec": "StrategySpec",
    "plan.strategies.replicated:DDP": "DDP_SPEC",
    "protocols.batch:Batch": "Batch",
    "protocols.roles:Output": "Output",
    "protocols.roles:Role": "Role",
    "strategies.base:Strategy": "Strategy",
    "strategies.ddp:DDP": "DDP",
    "strategies.replicas:ParallelInference": "ParallelInference",
    "training.base_trainer:BaseTrainer": "BaseTrainer",
    "training.loss_watchdog:LossWatchdog": "LossWatchdog",
}


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.filterwarnings("ignore:.*has moved:FutureWarning")
def test_a_name_that_was_handed_out_still_works(name: str) -> None:
    assert load_attr(f"paceline.{name}") is getattr(paceline.extend, EARLIER[name])


#: Every handed-out module is gone, and the package ``paceline.plan`` too; what has moved was loaded before.
GONE = """
import sys, warnings
from importlib import import_module
from importlib.machinery import PathFinder
import paceline, paceline.extend
from paceline.core.plugins import moved
from paceline.core.plugins.tables import load_attr

EARLIER = {earlier}
now = {{name: getattr(paceline.extend, new) for name, new in EARLIER.items()}}
gone = {{"paceline." + name.partition(":")[0] for name in EARLIER}} | {{"paceline.plan"}}
kept = {{name: module for name, module in sys.modules.items() if name.startswith("paceline.")}}
find = PathFinder.find_spec
hidden = gone | {{name for name in kept if name.startswith("paceline.plan.")}}
PathFinder.find_spec = lambda fullname, *a, **o: None if fullname in hidden else find(fullname, *a, **o)
for name in hidden:
    sys.modules.pop(name, None)
del paceline.plan
warnings.simplefilter("always")
for name, value in now.items():
    module, _, attribute = name.partition(":")
    for ask in (
        lambda: load_attr("paceline." + name),
        lambda: vars(__import__("paceline." + module, fromlist=[attribute]))[attribute],
        lambda: eval("paceline." + name.replace(":", "."), {{"paceline": __import__("paceline." + module)}}),
    ):
        sys.modules.pop("paceline." + module, None)
        with warnings.catch_warnings(record=True) as said:
            assert ask() is value, name
        (text,) = [str(w.message) for w in said if w.category is FutureWarning]
        assert "paceline." + name in text and "paceline.extend:" + EARLIER[name] in text, text
try:
    import_module("paceline." + "strategies.base").Other
except AttributeError as error:
    assert "paceline.extend: it has Strategy" in str(error), error
else:
    raise AssertionError("another name of a module that moved")
for name in ("paceline.strategies.bases", "paceline.stra", "strategies.base"):
    try:
        import_module(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
import paceline.plan.strategies.replicated
sys.modules.update(kept)  # what the library needs is there, under another name
PathFinder.find_spec = find
for call in (paceline.plan, moved.MovedModule("paceline.plan")):
    try:
        call({{"model": {{}}, "training": {{"seed": "x"}}}})
    except paceline.ConfigError as error:
        print(error.diagnostics[0].where)
"""


def test_a_name_that_was_handed_out_works_with_a_warning_where_its_module_has_moved() -> None:
    program = GONE.format(earlier=EARLIER)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["argument training.seed"] * 2, done.stderr
    assert {
        f"{module}:{name}": new for module, names in moved.NAMES.items() for name, new in names.items()
    } == (EARLIER)


def test_a_program_that_was_handed_out_runs_where_it_has_moved(tmp_path: Path) -> None:
    program = tmp_path / "moved.py"
    program.write_text(
        "import runpy, sys\nfrom paceline.core.plugins import moved\n"
        "moved.PROGRAMS['training.gone'] = moved.PROGRAMS['training.answers']\n"
        "sys.argv = ['answers', '--help']\nrunpy.run_module('paceline.training.gone', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, "--questions" in done.stdout) == (0, True), done.stderr
    assert "python -m paceline.training.gone has moved" in done.stderr


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
