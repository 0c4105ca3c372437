"""Folders and files are read as ``datasets.load_dataset`` reads them: the same rows in the same split, in its
order, or refused before the start.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from published_folders import Maker

from paceline.core.errors import DataError
from paceline.data.sources.locate import locate
from paceline.data.sources.readers import read_rows

SPLITS = ("train", "test", "validation", "train_sft", "held.out")


def asked(folder: Path, name: str | None, cache: Path) -> dict[str, list[dict[str, Any]]] | str:
    """The rows of every split as the library reads them, or why it does not."""
    import datasets

    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(str(folder), name, cache_dir=str(cache))
    except Exception as error:  # noqa: BLE001  (the library raises many kinds)
        return f"{type(error).__name__}: {error}"[:200]
    return {str(split): rows.to_list() for split, rows in found.items()}


def read(folder: Path, split: str, name: str | None) -> list[dict[str, Any]] | str:
    """The rows of a split as read here, or the code of the refusal."""
    try:
        return [dict(row.value or {}) for row in read_rows(locate(str(folder), split, name), split)]
    except DataError as error:
        assert error.diagnostics[0].hint or error.diagnostics[0].code == "data.split_missing", str(error)
        return error.diagnostics[0].code


def as_gzip(folder: Path, copy: Path) -> None:
    """Copy a folder with gzip for Zstandard, which ``datasets`` reads with a package that is not here."""
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        to = copy / str(file.relative_to(folder)).replace(".zst", ".gz")
        to.parent.mkdir(parents=True, exist_ok=True)
        content = file.read_bytes()
        if file.suffix == ".zst":
            content = gzip.compress(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
        to.write_bytes(content.replace(b".zst", b".gz") if file.name == "README.md" else content)


def differences(seed: int, tmp_path: Path) -> tuple[list[str], int]:
    """What is read otherwise in one folder, and how many splits were read alike."""
    folder, theirs, alike, wrong = tmp_path / f"set{seed}", tmp_path / f"their{seed}", 0, list[str]()
    folder.mkdir()
    names = Maker(seed).folder(folder)
    as_gzip(folder, theirs)
    for name in names:
        judged = asked(theirs, name, tmp_path / "cache")
        for split in SPLITS:
            found = read(folder, split, name)
            if isinstance(found, str):
                continue  # refused by name
            right = judged.get(split, "no such split") if isinstance(judged, dict) else judged
            if found == right:
                alike += 1
            else:
                files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
                wrong.append(f"seed {seed}, name {name}, split {split}: {found} but {right}; files {files}")
    return wrong, alike


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 400), marks=pytest.mark.slow)])
def test_folders_are_read_as_datasets_reads_them(seeds: range, tmp_path: Path) -> None:
    found = [differences(seed, tmp_path) for seed in seeds]
    assert not [line for wrong, _ in found for line in wrong]
    assert sum(alike for _, alike in found) > len(seeds), "too few folders were read at all"


CARD = """---
configs:
- config_name: main
  data_files: [{split: train, path: "data/*.csv"}, {split: test, path: "held/*.csv"}]
- config_name: other
  data_files: b/rows.csv
---
"""


@pytest.mark.parametrize(
    ("files", "wanted", "code", "said"),
    [
        ({"README.md": CARD, "data/a.csv": ""}, {}, "data.config_name", "main, other.*\\n.*name: main"),
        ({"README.md": CARD, "data/a.csv": ""}, {"name": "mian"}, "data.config_name", "'mian'"),
        ({"README.md": CARD, "data/a.csv": ""}, {"name": "other"}, "data.card", "b/rows.csv"),
        (
            {"README.md": CARD, "data/a.csv": ""},
            {"name": "main", "split": "dev"},
            "data.split_missing",
            "train, test",
        ),
        ({"README.md": CARD.replace("data/*", "../*"), "a.csv": ""}, {}, "data.card", "leads out"),
        (
            {"README.md": CARD.replace("- config_name: o", "- sep: ';'\n  config_name: o")},
            {},
            "data.card",
            "sep",
        ),
        ({"README.md": "---\nconfigs: [\n---\n", "a.csv": ""}, {}, "data.card", "not YAML"),
        ({"a.jsonl": ""}, {"name": "main"}, "data.config_name", "remove name:"),
        ({"a.jsonl": "", "b.csv": ""}, {}, "data.files_unclear", r"data.train: \["),
        ({"a.jsonl": "", "b.jsonl.bak": ""}, {}, "data.files_unclear", "b.jsonl.bak"),
        ({"a.jsonl": "", "rows.zip": ""}, {}, "data.files_unclear", "unpack"),
        ({"train/my-train/a.jsonl": ""}, {}, "data.files_unclear", "twice"),
        ({"Train.jsonl": "", "Test.jsonl": ""}, {}, "data.files_unclear", "Test.jsonl"),
        ({"train/test.jsonl": ""}, {}, "data.files_unclear", "test"),
        ({"a.jsonl": "", "test.jsonl": ""}, {}, "data.split_missing", "split: test"),
    ],
)
def test_folders_that_nobody_can_mean_are_refused(
    files: dict[str, str], wanted: dict[str, str], code: str, said: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"{re.escape(code)}\](.|\n)*{said}"):
        locate(str(tmp_path), **{"split": "train", **wanted})


def test_a_name_beside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    for path in (str(tmp_path / "a.jsonl"), "rows_of:mine"):
        with pytest.raises(DataError, match=r"data\.config_name.*no configurations"):
            locate(path, "train", "main")
