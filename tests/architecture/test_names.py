"""Nobody outside a spec and its table knows a strategy or an algorithm by its name: it asks the spec."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sources import PACKAGE, sources
from support import load_script

from paceline.core.plugins.tables import ALGORITHMS, CHOOSERS, STRATEGIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return load_script("measure_house")


@pytest.fixture(scope="module")
def package(house: ModuleType) -> Any:
    return house.Package.read(ROOT)


def test_nothing_is_compared_with_a_name_of_a_table(house: ModuleType, package: Any) -> None:
    assert len(package.trees) > 400
    assert [str(hit) for hit in house.comparisons(package)] == [], "ask its spec"
    assert (
        set(STRATEGIES.names()) | set(ALGORITHMS.names()) <= house.NAMES and set(CHOOSERS) == house.CHOOSERS
    )


def test_a_word_that_is_let_pass_is_still_there(house: ModuleType, package: Any) -> None:
    hits = house.comparisons(package, everywhere=True)
    idle = [
        key for key in house.OTHER_WORDS if not any(hit.path == key[0] and key[1] in hit.text for hit in hits)
    ]
    assert idle == []


@pytest.mark.parametrize(
    "source",
    [
        "plan.strategy == 'ddp'",
        "plan.strategy in ('zero1', 'zero2')",
        "NAMES = frozenset({'fsdp', 'pipeline'})",
        "{'dpo': 1}[plan.algorithm]",
        "plan.strategy.startswith('zero3')",
        "match plan.algorithm:\n    case 'ppo':\n        pass",
        "config.training.distributed_strategy != 'auto'",
        "isinstance(options, PpoOptions)",
        "isinstance(plan.engine, (FsdpOptions, PipelineOptions))",
        "strategy_spec('ddp').axes",
    ],
)
def test_every_way_to_compare_is_seen(house: ModuleType, tmp_path: Path, source: str) -> None:
    (tmp_path / "paceline").mkdir()
    (tmp_path / "paceline" / "a.py").write_text(source, encoding="utf-8")
    assert len(house.comparisons(house.Package.read(tmp_path))) == 1


def test_a_class_may_name_its_own_loss_term(house: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "paceline" / "algorithms").mkdir(parents=True)
    for name, source in (("kto", "{'kto': 1}"), ("dpo", "{'kto': 1}"), ("rloo", "algorithm == 'rloo'")):
        (tmp_path / "paceline" / "algorithms" / f"{name}.py").write_text(source, encoding="utf-8")
    found = [hit.path for hit in house.comparisons(house.Package.read(tmp_path))]
    assert found == [f"algorithms/{name}.py" for name in ("dpo", "rloo")]


def test_an_edge_reads_keys_still(house: ModuleType, package: Any) -> None:
    found = {path for files in house.look_ups(package).values() for path in files}
    assert house.EDGES.keys() - found == set(), "no edge any more: its keys count with the others"


#: The measure that grows with what the package does: what was built after it was taken counts in it.
GROWING = "statements"


def test_the_measures_hold_what_was_asked(house: ModuleType, package: Any) -> None:
    rows = [row for row in house.measures(package) if row[2] is not None]
    assert len(rows) == 8
    over = [f"{what}: {now}, at most {most}" for what, _, most, now in rows if now > most]
    assert [line for line in over if not line.startswith(GROWING)] == []


def test_no_message_names_a_module_that_may_move() -> None:
    """What users derive from is ``paceline.extend``'s; programs are named as ``python -m …``."""
    ours = re.compile(r"(?<!-m )paceline(?!\.extend)(?:\.[a-z_]+)+(?:[:.][A-Z]\w+|$)")
    texts = [
        (source.path, node.value)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    ]
    told = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("codes.toml")]
    texts += [("codes.toml", line) for text in told for line in text.splitlines()]
    assert len(texts) > 10_000
    assert [(where, text) for where, text in texts if " " in text and ours.search(text)] == []


def test_a_module_or_folder_that_is_named_as_text_is_there() -> None:
    """No rewrite of imports finds these, and some fail without a word: a traceback's folder, a program."""
    ours = re.compile(r"paceline(?:[./][a-z_0-9]*[a-z0-9])+/?(?::\w+)?")
    texts = {
        (source.path, node.value)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ours.fullmatch(node.value)
    }
    paths = {text: ROOT.joinpath(*re.split("[./]", text[1].partition(":")[0].rstrip("/"))) for text in texts}
    assert len(texts) > 100
    assert (
        sorted(t for t, path in paths.items() if not (path.is_dir() or path.with_suffix(".py").is_file()))
        == []
    )
