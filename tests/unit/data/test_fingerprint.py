"""The key of a prepared set: whatever changes its tokens changes it, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl

from paceline.config.sections.data import DataSection, Dataset
from paceline.data import file_digests
from paceline.data.file_digests import recall, remember
from paceline.data.prepare.prepare import key_of, sets_of
from paceline.data.prepare.tokenize import Setup
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import DOCUMENTS
from paceline.data.rows.kinds.preference_pairs import PAIRS
from paceline.data.tokenizer.identity import tokenizer_identity
from paceline.data.tokenizer.load import TokenizerSpec


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
        **dict.fromkeys(
            ("media_dir", "image_min_pixels", "image_max_pixels", "image_refuse_pixels"),
            "of rows with pictures alone (test_image_rows)",
        ),
        "image_cache": "where pixels are kept",
    },
    Reading: {
        "answers_only": "rows are refused by it, and none is read otherwise",
        "last_answers": "train_on: last says it",
        "completions": "train_on: completion says it",
        "images": "its parts are keys of data",
    },
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
    "special_tokens": (("eos_token", "<|x|>"),),
    "chat_template": "{{ messages }}",
    "code_revision": "a" * 40,
    "template_options": '{"enable_thinking": false}',
    "strict": True,
    "query_prompt": "Query: ",
    "document_prompt": "Document: ",
    "replace": {"a": "b"},
    "default_system": "Be brief.",
    "truncation": "start",
    "max_prompt_length": 5,
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
    reading = Reading.of(data, change.get("kind", DOCUMENTS))
    setup = Setup(spec, reading, data.max_length, data.on_too_long)
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


@pytest.mark.parametrize("library", file_digests.LIBRARIES)
def test_another_version_of_a_library_is_another_key(
    library: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", QA)
    before = key(rows, tokenizer, tmp_path / "c")
    known = file_digests.library_version
    monkeypatch.setattr(
        file_digests, "library_version", lambda name: "99" if name == library else known(name)
    )
    assert key(rows, tokenizer, tmp_path / "c") != before


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
