"""Prepared data that is not what was written never reaches training: it is made anew and said, or refused
by the name of its folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl

from paceline.core.errors import DataError
from paceline.data import dataset_store, file_digests
from paceline.data.file_digests import block_digest
from paceline.data.prepare.prepare import Prepared


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """(folder with a whole cache, its data, its tokenizer)."""
    root = tmp_path_factory.mktemp("made")
    rows, tokenizer = write_jsonl(root / "rows.jsonl", QA), make_tokenizer(root / "tokenizer")
    prepared_from(rows, tokenizer, root / "cache", validation_split=2)
    return root, rows, tokenizer


@pytest.fixture
def cache(made: tuple[Path, str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0] / "cache", tmp_path / "cache", symlinks=True))


def again(made: tuple[Path, str, Path], cache: Path) -> Prepared:
    return prepared_from(made[1], made[2], cache, validation_split=2)


def content(prepared: Prepared) -> list[Any]:
    tables = (prepared.train, prepared.eval)
    return [
        [t.row(i)[0].tolist(), t.row(i)[1].tolist()] for t in tables if t is not None for i in range(len(t))
    ]


def folder_of(cache: Path) -> Path:
    (folder,) = (cache / "prepared").iterdir()
    return folder


FILES = (
    "tokens.arrow",
    "train.npy",
    "eval.npy",
    "meta.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)


def flip(path: Path, place: int, bit: int = 1) -> None:
    """Another bit in the same size, written without a trace in the times (a disk's own decay leaves none)."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(bytes(data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", FILES)
def test_a_flip_anywhere_is_seen(name: str, made: tuple[Path, str, Path], cache: Path) -> None:
    """Every region of every file: the store finds it; preparation from end to end is tried below."""
    kept = dataset_store.Store(cache)
    path = folder_of(cache) / name
    key, size, whole = folder_of(cache).name, path.stat().st_size, path.read_bytes()
    for place in sorted({*range(0, size, max(1, size // 60)), size - 1}):
        flip(path, place, 1 << (place % 8))
        meta, why = kept.verified(key)
        assert meta is None and why, f"byte {place} of {name}"
        path.write_bytes(whole)
    assert kept.verified(key)[0] is not None


def swap(folder: Path) -> None:
    one, other = folder / "train.npy", folder / "eval.npy"
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "bit": lambda f: flip(f / "tokens.arrow", (f / "tokens.arrow").stat().st_size // 2),
    "high byte": lambda f: flip(f / "tokens.arrow", 1000, 0x40),
    "cut": lambda f: (f / "tokens.arrow").write_bytes((f / "tokens.arrow").read_bytes()[:-1]),
    "grown": lambda f: (f / "train.npy").write_bytes((f / "train.npy").read_bytes() + b"\0"),
    "empty": lambda f: (f / "train.npy").write_bytes(b""),
    "swapped": swap,
    "counts": (
        lambda f: (f / "meta.json").write_text(
            (f / "meta.json").read_text().replace('"longest": ', '"longest": 9')
        )
    ),
    "deep meta": lambda f: (f / "meta.json").write_text("[" * 100_000),
    "list for meta": lambda f: (f / "meta.json").write_text("[]"),
    "one more": lambda f: (f / "tokenizer" / "added_tokens.json").write_text("{}"),
    "dangling symbolic link": lambda f: (
        (f / "train.npy").unlink(),
        (f / "train.npy").symlink_to("/nonexistent"),
    )[0],
    "folder for a file": lambda f: ((f / "train.npy").unlink(), (f / "train.npy").mkdir())[0],
    "old format": (
        lambda f: (f / "meta.json").write_text(
            json.dumps({k: v for k, v in json.loads((f / "meta.json").read_text()).items() if k != "check"})
        )
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_mended_and_said(kind: str, made: tuple[Path, str, Path], cache: Path) -> None:
    want = content(again(made, made[0] / "cache"))
    DAMAGE[kind](folder_of(cache))
    found = again(made, cache)
    (said,) = (n for n in found.notes if n.code == "data.cache_rebuilt")
    assert not found.from_cache and said.where == str(found.path) and said.found
    assert content(found) == want
    after = again(made, cache)
    assert after.from_cache and not [n for n in after.notes if n.code == "data.cache_rebuilt"]


def test_a_set_of_another_key_under_this_name_is_not_taken(
    made: tuple[Path, str, Path], cache: Path, tmp_path: Path
) -> None:
    right = folder_of(cache)
    wrong = prepared_from(made[1], made[2], tmp_path / "other", train_on="all").path
    shutil.rmtree(right)
    shutil.copytree(wrong, right)
    assert not again(made, cache).from_cache


def test_links_to_the_same_bytes_are_the_same_data(
    made: tuple[Path, str, Path], cache: Path, tmp_path: Path
) -> None:
    folder = folder_of(cache)
    (folder / "tokens.arrow").rename(tmp_path / "elsewhere")
    (folder / "tokens.arrow").symlink_to(tmp_path / "elsewhere")
    assert again(made, cache).from_cache
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert again(made, cache).from_cache
    flip(tmp_path / "elsewhere", 1000)
    assert not again(made, cache).from_cache


def test_what_runs_work_out_may_lie_beside_it(made: tuple[Path, str, Path], cache: Path) -> None:
    (folder_of(cache) / dataset_store.DERIVED).mkdir()
    (folder_of(cache) / dataset_store.DERIVED / "x.safetensors").write_bytes(b"x")
    assert again(made, cache).from_cache


def test_a_cache_that_can_only_be_read_is_used_or_named(
    made: tuple[Path, str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_store.Store, "writable", lambda self: False)
    assert again(made, cache).from_cache
    flip(folder_of(cache) / "tokens.arrow", 1000)
    with pytest.raises(
        DataError, match=r"data\.cache_damaged.*\n.*tokens\.arrow.*\n.*data\.cache_dir"
    ) as caught:
        again(made, cache)
    assert caught.value.diagnostics[0].where == str(folder_of(cache))


def test_the_processes_of_one_starter_hash_once(
    made: tuple[Path, str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(
        dataset_store, "block_digest", lambda path: hashed.append(path.name) or block_digest(path)
    )
    monkeypatch.setattr(dataset_store, "starter", lambda: ["a"])
    for _ in range(3):
        again(made, cache)
    assert len(hashed) == len(set(hashed)) > 3
    monkeypatch.setattr(dataset_store, "starter", lambda: ["b"])
    again(made, cache)
    assert len(hashed) == 2 * len(set(hashed)), (
        "another start looks again: a disk decays without a trace in the times"
    )


def _prepare(made: tuple[Path, str, Path], cache: Path, answers: Any) -> None:
    found = again(made, cache)
    answers.put((found.from_cache, content(found)))


def test_ranks_that_start_together_mend_it_once(made: tuple[Path, str, Path], cache: Path) -> None:
    flip(folder_of(cache) / "tokens.arrow", 1000)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [context.Process(target=_prepare, args=(made, cache, answers)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    got = [answers.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert sorted(from_cache for from_cache, _ in got) == [False, True, True]
    assert all(rows == got[0][1] for _, rows in got)


def test_a_digest_is_of_all_blocks_and_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "HASHED_BLOCK", 16)
    seen = set()
    for data in (
        b"",
        b"a" * 16,
        b"a" * 17,
        b"a" * 16 + b"b" * 16,
        b"b" * 16 + b"a" * 16,
        b"a" * 32,
        b"a" * 33,
        b"\0",
    ):
        (tmp_path / "f").write_bytes(data)
        seen.add(block_digest(tmp_path / "f"))
    assert len(seen) == 8
