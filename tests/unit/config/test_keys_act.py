"""Whatever is accepted acts: a changed value of every key of every section changes what a run does, or is
refused by name.

A key may be said to do nothing only in ``config.idle``, with its reason, and never one that the guides of the
project describe.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import key_probes
import pytest
from key_table import TABLE, Key, Read

import paceline
from paceline.config.schema import SECTIONS, field_of, item_model, nested_model
from paceline.config.sections.model import IDLE
from paceline.config.sections.types import Section
from paceline.core.errors import PacelineError
from paceline.plan.plan import Plan

PACKAGE = Path(paceline.__file__).parent
ROOT = PACKAGE.parent


def keys(prefix: str, model: Any) -> Iterator[str]:
    for name, info in model.model_fields.items():
        path, inner, item = f"{prefix}.{name}", nested_model(info), item_model(info)
        if inner is not None:
            yield from keys(path, inner)
            continue
        yield path
        if item is not None and path != "data.eval":
            yield from keys(f"{path}[]", item)


ALL = [path for section, model in SECTIONS.items() for path in keys(section, model)]

#: What becomes of rows: (the changed section ``data``, of what it is given beside). Driven through
#: ``prepare``.
DATA: dict[str, Any] = {
    "data.train": {"train": "{folder}/other.jsonl"},
    "data.train[].path": {"train": [{"path": "{folder}/other.jsonl"}]},
    "data.train[].format": {"train": [{"path": "{folder}/rows.jsonl", "format": "sharegpt"}]},
    "data.train[].weight": {"train": [{"path": "{folder}/rows.jsonl", "weight": 2}]},
    "data.train[].split": {"train": [{"path": "{folder}/folder", "split": "test"}]},
    "data.train[].name": {"train": [{"path": "{folder}/rows.jsonl", "name": "sub"}]},
    "data.train[].columns": {"train": [{"path": "{folder}/rows.jsonl", "columns": {"output": "input"}}]},
    "data.train[].converter": {
        "train": [{"path": "{folder}/rows.jsonl", "converter": "rows_of_mine:shorter"}]
    },
    "data.train[].replace": {"train": [{"path": "{folder}/rows.jsonl", "replace": {"Answer": "Reply"}}]},
    "data.default_system": {"default_system": "Be brief."},
    "data.truncation": {"max_length": 24, "truncation": "start"},
    "data.max_prompt_length": {"max_prompt_length": 4, "truncation": "start"},
    "data.converter": {"converter": "rows_of_mine:shorter"},
    "data.train[].max_rows": {"train": [{"path": "{folder}/rows.jsonl", "max_rows": 3}]},
    "data.eval": {"eval": "{folder}/other.jsonl"},
    "data.validation_split": {"validation_split": 4},
    "data.train_on": {"train_on": "all"},
    "data.on_bad_row": {"train": "{folder}/bad.jsonl", "on_bad_row": "skip"},
    "data.strict": {"train": "{folder}/odd.jsonl", "strict": True},
    "data.on_too_long": {"max_length": 24, "on_too_long": "skip"},
    "data.num_proc": {"num_proc": 2},
}
BESIDE: dict[str, Any] = {
    "data.train[].split": {"train": [{"path": "{folder}/folder", "split": "train"}]},
    "data.on_bad_row": {"train": "{folder}/bad.jsonl"},
    "data.strict": {"train": "{folder}/odd.jsonl"},
    "data.on_too_long": {"max_length": 24},
    "data.truncation": {"max_length": 24},
    "data.max_prompt_length": {"truncation": "start"},
}


def test_every_key_is_in_the_table_once_and_the_table_has_no_other() -> None:
    known = [*TABLE, *DATA, *IDLE]
    assert sorted(set(ALL) - set(known)) == [], (
        "say what these keys do: a probe, a test that shows it, or config.idle"
    )
    assert sorted(set(known) - set(ALL)) == [] and len(known) == len(set(known))


def observed(key: Key, path: str, value: dict[str, Any]) -> tuple[str, set[str]]:
    """(what the probe answers, the codes of a refusal). Sections and plans have no words meanwhile: they
    would be an echo.
    """
    tree = key_probes.merged({}, {**key.base, **{_written(path): v for path, v in value.items()}})
    with (
        mock.patch.object(Section, "__repr__", lambda self: "section"),
        mock.patch.object(Plan, "__repr__", lambda self: "plan"),
    ):
        try:
            return repr(key.probe(tree)), set()
        except PacelineError as error:
            return "", {d.code for d in error.diagnostics}


def _written(path: str) -> str:
    """Where a probe looks for a key of a list's item."""
    return path.replace("rollout.rewards[]", "rollout_item")


@pytest.mark.parametrize("path", [path for path, key in TABLE.items() if isinstance(key, Key)])
def test_a_changed_value_changes_what_a_run_does_or_is_refused(path: str) -> None:
    key = TABLE[path]
    assert isinstance(key, Key)
    before, refused = observed(key, path, {})
    assert not refused, "the neighbour must start"
    after, codes = observed(key, path, {path: key.value})
    assert codes == ({key.refused} if key.refused else set())
    assert key.refused or after != before, f"{path}: {key.value!r} changes nothing"
    assert observed(key, path, {})[0] == before, "a probe whose answer changes by itself shows nothing"


@pytest.mark.parametrize("path", [path for path, key in TABLE.items() if isinstance(key, Read)])
def test_what_only_a_run_shows_is_read_there_and_shown_by_a_test(path: str) -> None:
    key, name = TABLE[path], path.rsplit(".", 1)[1]
    assert isinstance(key, Read)
    functions = [
        node
        for node in ast.walk(ast.parse((PACKAGE / key.file).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == key.function
    ]
    read = [
        n
        for function in functions
        for n in ast.walk(function)
        if isinstance(n, ast.Attribute) and n.attr == name
    ]
    assert read, f"{key.function} of {key.file} no longer reads {name}"
    assert name in (ROOT / key.shown).read_text()


def test_a_first_evaluation_is_asked_for_by_the_worker() -> None:
    """``eval_on_start``: the trainer gets an evaluation by the table's probe; that it is made before the
    first step, the worker says.
    """
    worker = (PACKAGE / "training/worker.py").read_text()
    [asked] = [
        n
        for n in ast.walk(ast.parse(worker))
        if isinstance(n, ast.If) and "eval_on_start" in ast.unparse(n.test)
    ]
    assert "trainer.measure()" in ast.unparse(asked)


# --- data


def rows(path: Path, start: int, count: int, *extra: str) -> None:
    lines = [
        json.dumps({"instruction": f"Question {i}?", "input": "", "output": f"Answer {i * i}."})
        for i in range(start, start + count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, *extra]) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("data")
    rows(found / "rows.jsonl", 0, 12)
    rows(found / "other.jsonl", 50, 5)
    rows(found / "bad.jsonl", 0, 8, "{not json")
    rows(found / "odd.jsonl", 0, 8, '{"instruction": "Q", "output": "A", "zq": 1}')
    rows(found / "folder" / "train.jsonl", 0, 6)
    rows(found / "folder" / "test.jsonl", 60, 6)
    return found


@pytest.fixture(autouse=True)
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "rows_of_mine.py").write_text(
        "def shorter(row): return {**row, 'output': row['output'][:3]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("rows_of_mine", None)


def prepared(data: dict[str, Any], folder: Path, tokenizer: Path, cache: Path) -> Any:
    """Tokens and labels of every document, weights, and how many were held out; or the codes of a refusal."""
    from paceline.config.sections.data import DataSection
    from paceline.config.sections.model import ModelSection
    from paceline.data.prepare.prepare import prepare
    from paceline.data.rows.kinds.base import DOCUMENTS
    from paceline.data.rows.kinds.prompts import PROMPTS

    text = json.dumps({"train": "{folder}/rows.jsonl", "num_proc": 1, "max_length": 256, **data})
    section = DataSection.model_validate(json.loads(text.replace("{folder}", str(folder))))
    try:
        kind = PROMPTS if "truncation" in data and "max_length" not in data else DOCUMENTS
        named = ModelSection(tokenizer=str(tokenizer))
        found = prepare(section, named, seed=1, cache_dir=cache, report=None, kind=kind)
    except PacelineError as error:
        return sorted(d.code for d in error.diagnostics)
    tables = [t for t in (found.train, found.eval) if t is not None]
    documents = [[[part.tolist() for part in table.row(i)] for i in range(len(table))] for table in tables]
    return documents, found.train.weights, [(d.code, d.what) for d in found.notes if d.code != "data.mixture"]


@pytest.mark.parametrize(
    "path", [path for path in DATA if path not in ("data.num_proc", "data.train[].name")]
)
def test_a_changed_key_of_data_changes_the_rows_or_is_refused(
    path: str, folder: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    before = prepared(BESIDE.get(path, {}), folder, tokenizer_dir, tmp_path)
    assert prepared(DATA[path], folder, tokenizer_dir, tmp_path) != before


def test_the_number_of_processes_is_what_preparation_is_built_with(
    folder: Path, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.data.prepare import build as room

    asked: list[int] = []

    def stopped(setup: Any, chunks: Any, num_proc: int) -> None:
        asked.append(num_proc)
        raise LookupError

    monkeypatch.setattr(room, "tokenise", stopped)
    for count in (1, 2):
        with pytest.raises(LookupError):
            prepared({"num_proc": count}, folder, tokenizer_dir, tmp_path)
    assert asked == [1, 2]


def test_the_name_of_a_hub_set_is_what_the_hub_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from paceline.config.sections.data import DataSection
    from paceline.data.preflight.find_sets import find_sets
    from paceline.data.sources.read_tables import load_hub

    asked: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)))
    for name in (None, "sub"):
        [found] = find_sets(
            "data.train", DataSection.model_validate({"train": [{"path": "org/set", "name": name}]}).train
        )
        load_hub(found.located, "train")
    assert [args for args, _ in asked] == [("org/set", None), ("org/set", "sub")]


# --- what is decided is read, and what sets nothing says so


def test_what_a_plan_decides_is_read_by_the_ranks() -> None:
    """Else a probe of the plan would take an echo for an effect."""
    rooms = ("training", "strategies", "models", "runtime", "generation", "checkpoint", "launch", "runlog")
    reads = {
        node.attr
        for room in rooms
        for path in (PACKAGE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value).rsplit(".", 1)[-1] in ("plan", "shared")
    }
    assert set(key_probes.DECIDES) - reads == set()
    assert "decisions" not in key_probes.DECIDES and "config" not in key_probes.DECIDES


def test_an_algorithm_s_options_are_read_by_its_arithmetic() -> None:
    """What ``__init__`` keeps is loaded elsewhere in the algorithm: keeping it alone is an echo."""
    kept, loaded = set(), set()
    for path in (PACKAGE / "algorithms").rglob("*.py"):
        if path.is_relative_to(PACKAGE / "algorithms" / "rewards"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                (kept if isinstance(node.ctx, ast.Store) else loaded).add(node.attr)
    outside = " ".join(
        p.read_text() for room in ("training", "strategies") for p in (PACKAGE / room).rglob("*.py")
    )
    assert {name for name in kept - loaded if not re.search(rf"algorithm\.{name}\b", outside)} == set()
    assert {"beta", "vf_coef"} <= kept, "attributes were found at all"


#: Read under another form than the key's own name: the table shows what comes of them.
OTHERWISE = {
    "training.accelerate_config",
    "training.dpo.loss_weights",  # while the config is loaded
    "training.experiment_name",  # by the config's own run_directory
    # axis by axis
    *(f"training.parallelism.{axis}_size" for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp")),
    "training.bf16_full_eval",
    "training.fp16_full_eval",  # word by word
    *("model.processor_kwargs", "data.media_dir", "data.image_cache"),  # until images are read
    *(f"data.image_{name}_pixels" for name in ("min", "max", "refuse")),
}
#: They echo a key, or speak about it: that is not reading it.
SPEAKERS = ("config/", "plan/explain.py", "training/checkpointing/resume.py")
SENTENCES = (
    "option_decisions",
    "idle_decisions",
    "_engine_options",
    "choose_attention",
)


def read_names(tree: ast.AST) -> Iterator[str]:
    """Attributes that are loaded, parameters (a section's options are handed over by name) and strings,
    but for functions that only speak.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in SENTENCES:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from read_names(node)


def test_every_key_is_read_outside_the_config_and_the_sentences_of_the_plan() -> None:
    read: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if not path.relative_to(PACKAGE).as_posix().startswith(SPEAKERS):
            read.update(read_names(ast.parse(path.read_text())))
    for path in PACKAGE.rglob("*.jinja"):  # jobs of schedulers
        read.update(re.findall(r"\bsite\.(\w+)", path.read_text(encoding="utf-8")))
    elsewhere = OTHERWISE | IDLE.keys() | _refused_by_rules()
    missing = [path for path in ALL if path.rsplit(".", 1)[1] not in read and path not in elsewhere]
    assert missing == [], "nothing reads these"


def _refused_by_rules() -> set[str]:
    return {path for path, key in TABLE.items() if isinstance(key, Key) and key.refused}


def described() -> str:
    """The documents that the project is made from, as far as they lie here: the guide's blocks, and the
    shipped examples.
    """
    files = [*(ROOT / "tests/golden/guide_blocks").rglob("*.yaml"), *ROOT.glob("config*.yaml")]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("path", list(IDLE))
def test_a_key_that_sets_nothing_says_so_with_its_reason(path: str) -> None:
    section, _, name = path.partition(".")
    info, reason = field_of(path), IDLE[path]
    assert info is not None and len(reason.split()) > 5
    assert reason in str(info.description), "the reference says it"
    other = {section: {name: not info.default}}
    made = key_probes.plan_of(key_probes.Config.from_json(key_probes.plain(other)))
    said = [d for d in made.decisions if d.subject == path]
    assert [(d.reason, d.granted) for d in said] == [(reason, False)], "the plan says it"
    assert not re.search(rf"\b{name}\b", described()), "a key that the guides describe acts"
