"""The key of a prepared set: whatever changes its tokens changes it, and nothing else does."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import tokenize
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl

import paceline.data
from paceline.config.sections.data import DataSection, Dataset
from paceline.core.tables import ROW_KINDS
from paceline.data import digests, fingerprint
from paceline.data.digests import recall, remember
from paceline.data.examples import Reading
from paceline.data.identity import tokenizer_identity
from paceline.data.kinds.base import row_kind
from paceline.data.kinds.documents import DOCUMENTS
from paceline.data.kinds.pairs import PAIRS
from paceline.data.prepare import key_of, sets_of
from paceline.data.tokenise import Setup
from paceline.data.tokenizer import TokenizerSpec

HERE = Path(paceline.data.__file__).parent


def merging_tokenizer(folder: Path, model_type: str) -> Path:
    """The byte tokenizer with "12" as one token; of which ``config.json`` says what model it belongs to."""
    make_tokenizer(folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"]["vocab"]["12"] = len(described["model"]["vocab"]) + 10
    described["model"]["merges"] = [["1", "2"]]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def test_the_same_tokenizer_files_under_another_model_are_another_tokenizer(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"instruction": "Count", "output": "12 12 12"}])
    llama, qwen = (merging_tokenizer(tmp_path / kind, kind) for kind in ("llama", "qwen2"))
    assert (llama / "tokenizer.json").read_bytes() == (qwen / "tokenizer.json").read_bytes()
    one, other = (prepared_from(path, folder, tmp_path / "cache") for folder in (llama, qwen))
    alone = prepared_from(path, qwen, tmp_path / "fresh")
    assert not other.from_cache and one.fingerprint != other.fingerprint
    assert (other.counts.tokens, other.counts.labels) == (alone.counts.tokens, alone.counts.labels)
    assert one.counts.labels != other.counts.labels, (
        "the test proves nothing: both classes give the same tokens"
    )


def test_a_model_of_another_size_finds_the_same_data(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", QA)
    small, large = (make_tokenizer(tmp_path / name) for name in ("small", "large"))
    for folder, layers in ((small, 2), (large, 80)):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
    first = prepared_from(path, small, tmp_path / "cache")
    assert prepared_from(path, large, tmp_path / "cache").fingerprint == first.fingerprint


# What of the sections changes no token: where it lies, how fast it goes, how often a row is drawn, how rows
# are packed for a step.
BESIDE: dict[type, dict[str, str]] = {
    Dataset: {
        "path": "the content counts, wherever it lies",
        "weight": "rows are drawn in the run",
        "name": "of hub data alone, whose fingerprint holds it",
    },
    DataSection: {
        "packing": "rows are packed in the run",
        "num_proc": "the work of a chunk is the same in any process",
        "cache_dir": "where it is kept",
        "seed": "handed over by the caller as the split's seed",
    },
    Setup: {},
    TokenizerSpec: {"folder": "the files count, wherever they lie"},
}
CHANGED: dict[str, Any] = {
    "split": "test",
    "format": "alpaca",
    "columns": {"output": "input"},
    "max_rows": 3,
    "validation_split": 2,
    "max_length": 77,
    "train_on": "all",
    "on_bad_row": "skip",
    "on_too_long": "skip",
    "eval": "rows",
    "train": "more",
    "kind": PAIRS,
    "add_tokens": ("xyz",),
    "add_special_tokens": ("<|x|>",),
    "chat_template": "{{ messages }}",
    "code_revision": "a" * 40,
    "template_options": '{"enable_thinking": false}',
    "strict": True,
    "converter": "textwrap:dedent",
}


def key(rows: str, folder: Path, cache: Path, *, seed: int = 1, **change: Any) -> str:
    """The key of the rows with one thing changed, wherever it belongs."""
    of = {k: {f: v for f, v in change.items() if f in _names(k)} for k in BESIDE}
    train = [{"path": rows, **of[Dataset]}]
    more = dict(of[DataSection])
    if more.pop("train", None):
        train.append({"path": rows})
    if more.pop("eval", None):
        more["eval"] = rows
    data = DataSection(train=train, **more)
    spec = dataclasses.replace(TokenizerSpec(str(folder)), **of[TokenizerSpec])
    setup = Setup(spec, Reading.of(data, DOCUMENTS), data.max_length, data.on_too_long)
    setup = dataclasses.replace(setup, **{n: v for n, v in of[Setup].items() if n == "kind"})
    return key_of(data, setup, *sets_of(data), seed, cache)


def _names(kind: type) -> list[str]:
    return (
        [f.name for f in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else list(kind.model_fields)
    )  # type: ignore[attr-defined]


FIELDS = sorted({name for kind in BESIDE for name in _names(kind)} - {"tokenizer"})


def test_every_field_is_either_changed_here_or_said_to_change_nothing() -> None:
    excused = {name for names in BESIDE.values() for name in names}
    assert set(FIELDS) == set(CHANGED) | excused
    assert not set(CHANGED) & excused


@pytest.mark.parametrize("field", CHANGED)
def test_every_input_changes_the_key(field: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()  # a folder, which may have several splits
    for split in ("train", "test"):
        rows = write_jsonl(tmp_path / "rows" / f"{split}.jsonl", QA)
    rows = str(tmp_path / "rows") if field == "split" else rows
    changed = key(rows, tokenizer, tmp_path / "c", **{field: CHANGED[field]})
    assert changed != key(rows, tokenizer, tmp_path / "c")


@pytest.mark.parametrize(
    "change",
    [
        "content",
        "tokenizer.json",
        "tokenizer_config.json",
        "a template file",
        "seed of a split",
        "name of a file",
    ],
)
def test_every_file_that_is_read_changes_the_key(change: str, tmp_path: Path) -> None:
    folder, rows = make_tokenizer(tmp_path / "t"), write_jsonl(tmp_path / "rows.jsonl", QA)
    before = key(rows, folder, tmp_path / "c", validation_split=2)
    seed = 1
    if change == "content":
        Path(rows).write_text(Path(rows).read_text().replace("Answer 7", "answer 7"))
    elif change == "name of a file":
        rows = str(Path(rows).rename(tmp_path / "test.jsonl"))
    elif change == "seed of a split":
        seed = 2
    elif change == "a template file":
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    else:
        text = (folder / change).read_text()
        (folder / change).write_text(
            text.replace("<|im_start|>", "<|im_begin|>").replace(
                '"eos_token": "<|end|>"', '"eos_token": "<|im_end|>"'
            )
        )
    assert key(rows, folder, tmp_path / "c", seed=seed, validation_split=2) != before


@pytest.mark.parametrize("library", digests._LIBRARIES)
def test_another_version_of_a_library_is_another_key(
    library: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", QA)
    before = key(rows, tokenizer, tmp_path / "c")
    known = digests._version
    monkeypatch.setattr(digests, "_version", lambda name: "99" if name == library else known(name))
    assert key(rows, tokenizer, tmp_path / "c") != before


def imported(module: str) -> set[str]:
    """Modules of this room that ``module`` imports, itself included, all the way down."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((HERE / f"{name}.py").read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline.data."):
                waiting.append("/".join(str(node.module).split(".")[2:]))
    return found


def test_every_module_that_makes_tokens_is_in_the_key() -> None:
    kinds = {type(row_kind(name)).__module__ for name in ROW_KINDS}
    of_kinds = set().union(*(imported("/".join(kind.split(".")[2:])) for kind in kinds))
    known = {
        *fingerprint._CODE,
        *fingerprint.BESIDE_THE_TOKENS,
        *(f"kinds/{p.stem}" for p in HERE.glob("kinds/*.py")),
    }
    assert known >= imported("build") | of_kinds
    assert all((HERE / f"{name}.py").is_file() for name in fingerprint._CODE)


def test_what_was_remembered_is_believed_only_whole(tokenizer: Path, tmp_path: Path) -> None:
    spec = TokenizerSpec(str(tokenizer))
    want = tokenizer_identity(spec, tmp_path)
    (note,) = (tmp_path / "tokenizers").iterdir()
    whole = note.read_bytes()
    for place in range(0, len(whole), 7):
        note.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert recall(note) is None or recall(note) == json.loads(whole)["value"], place
    assert tokenizer_identity(spec, tmp_path) == want
    remember(tmp_path / "x", {"a": 1})
    assert recall(tmp_path / "x") == {"a": 1}


SOURCE = '''"""What it is."""

import json  # for rows


class Rows:
    """Rows.

    Many.
    """

    mark = "# no comment"

    def read(self) -> str:
        """Return one."""
        # the first
        text = """not a
        docstring"""
        return text
'''


def test_another_comment_or_docstring_prepares_nothing_anew() -> None:
    bare = fingerprint.without_comments(SOURCE)
    assert ast.literal_eval(bare.split("mark = ")[1].splitlines()[0]) == "# no comment"
    assert "not a\n        docstring" in bare and "Return one" not in bare and "the first" not in bare
    for old, new in (
        ("What it is", "Rows of data"),
        ("for rows", "said anew"),
        ("Many.", "A few.\n\n    More."),
    ):
        assert fingerprint.without_comments(SOURCE.replace(old, new)) == bare
    for old, new in (("no comment", "a mark"), ("not a", "no"), ("return text", "return text * 2")):
        assert fingerprint.without_comments(SOURCE.replace(old, new)) != bare
    here = (HERE / "fingerprint.py").read_text(encoding="utf-8")
    assert "Return 40 hex" not in fingerprint.without_comments(here)


def parsed_without_comments(source: str) -> str:
    """The same by Python's own parser and tokens."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = node.body[0].value if node.body and isinstance(node.body[0], ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or 0) - text.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def test_no_code_is_taken_for_a_comment() -> None:
    for path in (*(HERE / f"{name}.py" for name in fingerprint._CODE), *HERE.glob("kinds/*.py")):
        source = path.read_text(encoding="utf-8")
        assert fingerprint.without_comments(source) == parsed_without_comments(source), path


def test_the_programs_version_follows_its_code_and_not_its_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in fingerprint._CODE:
        (tmp_path / f"{name}.py").write_text('"""A module."""\nx = 1\n')
    monkeypatch.setattr(fingerprint, "__file__", str(tmp_path / "fingerprint.py"))
    first = fingerprint.code_version()["source"]
    (tmp_path / "build.py").write_text('"""Another text."""\n\nx = 1  # one\n')
    assert fingerprint.code_version()["source"] == first
    (tmp_path / "build.py").write_text('"""A module."""\nx = 2\n')
    assert fingerprint.code_version()["source"] != first
