"""A byte changed anywhere in a foreign checkpoint's pickles or JSON: it is read, or refused by name; nothing
else is raised.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_foreign_dcp
import test_zero_folders as deepspeed
from foreign_samples import write_trainer_folder

from paceline.checkpoint.convert import convert
from paceline.checkpoint.convert.pickle_reader.allowed_names import LISTED
from paceline.checkpoint.convert.pickle_reader.machine import PickleMachine
from paceline.checkpoint.convert.pickle_reader.values import Value, ValueEncoder, decode
from paceline.core.errors import PacelineError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TRIES = 25


class ReaderHere:
    """Reads in this process, what the child reads there."""

    walls = ()

    def read(self, data: bytes | memoryview) -> Value:
        return decode(ValueEncoder(len(data)).encode(PickleMachine(bytes(data), LISTED).run()))

    def close(self) -> None:
        pass


MADE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "metadata": (test_foreign_dcp.write, ".metadata"),
    "optimizer": (write_trainer_folder, "optimizer.pt"),
    "weights": (lambda f: write_trainer_folder(f, bin_weights=True), "pytorch_model.bin"),
    "place": (write_trainer_folder, "trainer_state.json"),
    "rank": (lambda f: deepspeed.write(f, 2), f"global_step2/{deepspeed.OPTIMIZER.format(1)}"),
    "rank of stage 3": (lambda f: deepspeed.write(f, 3), f"global_step2/{deepspeed.OPTIMIZER.format(0)}"),
    "universal": (lambda f: deepspeed.write_universal(f, 2), "zero/model.norm.weight/fp32.pt"),
}


def changed(data: bytes, draw: random.Random) -> bytes:
    """``data`` with one byte changed; in an archive of torch, one of its pickle."""
    if data[:4] != b"PK\x03\x04":
        at = draw.randrange(len(data))
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, changed(content, draw) if name.endswith("data.pkl") else content)
    return made.getvalue()


@pytest.mark.parametrize("slot", MADE)
def test_a_changed_byte_is_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slot: str
) -> None:
    monkeypatch.setattr(convert, "PickleReader", ReaderHere)
    make, name = MADE[slot]
    make(tmp_path / "theirs")
    path, draw, refused = tmp_path / "theirs" / name, random.Random(slot), 0
    data = path.read_bytes()
    for _ in range(TRIES):
        path.write_bytes(changed(data, draw))
        try:
            convert.convert(tmp_path / "theirs", tmp_path / "ours")
        except PacelineError as error:
            refused += 1
            assert error.diagnostics[0].code.startswith(("convert.", "checkpoint.json")), error
    assert refused > TRIES // 3
