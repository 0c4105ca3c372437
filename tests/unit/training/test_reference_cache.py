"""The reference's log-probabilities: asked once, kept under what they follow from, read back whole or made
anew.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.training.run.reference_logprobs import Column, ReferenceCache, cached_columns, weights_identity

WORLD = SimpleNamespace(is_main=True, any=bool, all_reduce_sum_float=list)  # one process


class Asked:
    """A model that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, source: SimpleNamespace) -> Column:
        self.times += 1
        return np.arange(len(source.table.lengths)) - 1 / 3


def sources(train: int, held_out: int) -> dict[str, SimpleNamespace]:
    return {
        n: SimpleNamespace(table=SimpleNamespace(lengths=[5] * size))
        for n, size in (("train", train), ("eval", held_out))
    }


def ask(
    folder: Path, model: Asked, key: dict[str, object], train: int = 4
) -> tuple[dict[str, dict[str, Column]], str]:
    return cached_columns(ReferenceCache(WORLD, folder, key), sources(train, 2), model, lambda: 0.0)


def test_the_same_question_is_asked_once_and_answered_bit_for_bit(tmp_path: Path) -> None:
    model = Asked()
    first, said = ask(tmp_path / "new", model, {"weights": "a"})
    assert model.times == 2 and "computed" in said and "cached in" in said
    second, said = ask(tmp_path / "new", model, {"weights": "a"})
    assert model.times == 2 and "computed" not in said
    assert set(first) == {"train", "eval"} and set(first["train"]) == {"reference_logps"}
    for split, columns in first.items():
        assert columns["reference_logps"].tobytes() == second[split]["reference_logps"].tobytes()


def test_other_weights_other_rows_and_a_broken_file_are_asked_anew(tmp_path: Path) -> None:
    model = Asked()
    ask(tmp_path, model, {"weights": "a"})
    ask(tmp_path, model, {"weights": "b"})
    assert model.times == 4 and len(list(tmp_path.iterdir())) == 2
    columns, _ = ask(tmp_path, model, {"weights": "a"}, train=6)
    assert model.times == 6 and len(columns["train"]["reference_logps"]) == 6
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    ask(tmp_path, model, {"weights": "b"})
    assert model.times == 8
    ask(tmp_path, model, {"weights": "b"})
    assert model.times == 8  # the broken one was replaced


def test_a_flipped_bit_is_no_number_to_train_on(tmp_path: Path) -> None:
    model = Asked()
    ask(tmp_path, model, {})
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for place in range(0, len(whole), 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        columns = ReferenceCache(WORLD, tmp_path, {})._read({"train": 4, "eval": 2})
        assert columns is None or all((c == np.arange(len(c)) - 1 / 3).all() for c in columns.values()), place


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    columns, said = ask(tmp_path / "file", Asked(), {})
    assert "not cached" in said and len(columns["train"]["reference_logps"]) == 4


def test_weights_are_told_apart_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "notes.md").write_text("read me")
    before = weights_identity(str(tmp_path), None)
    (tmp_path / "notes.md").write_text("read me twice")
    assert weights_identity(str(tmp_path), None) == before
    (tmp_path / "model.safetensors").write_bytes(b"three")
    assert weights_identity(str(tmp_path), None) != before
    assert weights_identity("nobody/has-this", "main") == ["nobody/has-this", "main"]
