"""Checkpoints of strangers in other programs' forms: what is no tensor, number or text is refused by name,
and nothing of it is run.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_samples import stepped, tiny_llama, write_trainer_folder
from test_hostile_files import Bomb, pickles

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.convert.pickle_reader.allowed_names import LISTED
from paceline.checkpoint.convert.pickle_reader.client import PickleReader
from paceline.checkpoint.convert.pickle_reader.machine import PickleMachine
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles
from paceline.checkpoint.convert.pickle_reader.torch_zip import TorchArchive
from paceline.checkpoint.convert.pickle_reader.values import Refused, ValueEncoder, as_dict, decode
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.main import main
from paceline.core.errors import CheckpointError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "checkpoint-2"
    write_trainer_folder(folder)
    return folder


@pytest.fixture(scope="module")
def reader() -> Iterator[PickleReader]:
    with closing(PickleReader()) as found:
        yield found


def copy_of(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "checkpoint-2"))


def refusal(source: Path, to: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        convert(source, to)
    (found,) = error.value.diagnostics
    assert found.code in ("convert.refused", "convert.misfit"), found.code
    assert not (to / "checkpoints/latest").exists()
    return f"{found.where}: {found.what}: {found.found}"


@pytest.mark.parametrize("form", ["raw", "zip", "legacy", "plain_zip"])
@pytest.mark.parametrize("slot", ["optimizer.pt", "scaler.pt", "pytorch_model.bin", "model.safetensors"])
def test_a_pickle_that_calls_something_is_refused_in_any_slot(
    sound: Path, tmp_path: Path, slot: str, form: str
) -> None:
    folder, canary = copy_of(sound, tmp_path), tmp_path / "canary"
    if slot.endswith(".bin"):
        (folder / "model.safetensors").unlink()
    (folder / slot).write_bytes(pickles(canary)[form])
    found = refusal(folder, tmp_path / "ours")
    assert slot in found and not canary.exists()
    if form == "zip" and slot != "model.safetensors":
        assert "'_io.open'" in found or "'io.open'" in found


def test_what_is_not_needed_is_not_read(sound: Path, tmp_path: Path) -> None:
    folder, canary = copy_of(sound, tmp_path), tmp_path / "canary"
    for slot in ("scheduler.pt", "rng_state.pth", "training_args.bin", "custom.pkl"):
        (folder / slot).write_bytes(pickles(canary)["zip"])
    report = convert(folder, tmp_path / "ours")
    assert not canary.exists() and report.written.step == 2
    assert any("training_args.bin" in one.what for one in report.left)


def call(module: str, name: str, *args: Any) -> bytes:
    """A pickle that would call a function of that name, whatever it is."""
    body = b"".join(b"\x8c" + bytes([len(a)]) + a.encode() for a in args)
    return b"\x80\x04c" + f"{module}\n{name}\n".encode() + b"(" + body + b"tR."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy"),
        ("collections", "OrderedDict.__reduce__"),
    ],
)
def test_a_name_that_is_not_listed_is_refused_by_name(module: str, name: str) -> None:
    with pytest.raises(Refused, match=f"{module}.{name}"):
        PickleMachine(call(module, name, "true"), LISTED).run()
    stacked = (
        b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93."
    )
    with pytest.raises(Refused, match=f"{module}.{name}"):
        PickleMachine(stacked, LISTED).run()


HOSTILE: dict[str, bytes] = {
    "within itself": b"\x80\x02]q\x00h\x00a.",
    "repeated a billion times": b"\x80\x02]"
    + b"".join(b"q" + bytes([n]) + b"]h" + bytes([n]) + b"ah" + bytes([n]) + b"a" for n in range(40))
    + b".",
    "deeper than any": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "a number of 4 GiB": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "a text of 2**63": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f" + b".",
    "an empty stack": b"\x80\x02R.",
    "no end": b"\x80\x02}",
    "a memo that is empty": b"\x80\x02h\x05.",
    "a state for a name": b"\x80\x02ctorch\nSize\n}b.",
    "items for a name": b"\x80\x02ctorch\nSize\nK\x01a.",
    "a call of a text": b"\x80\x02X\x02\x00\x00\x00os)R.",
    "an extension's code": b"\x80\x02\x82\x01.",
    "python 2's instance": b"(ios\nsystem\n.",
    "text protocol": b"cos\nsystem\n(S'true'\ntR.",
    "a mark across a pop": b"\x80\x02K\x01(0000.",
    "a buffer": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pickle_made_by_hand_is_refused(reader: PickleReader, kind: str) -> None:
    with pytest.raises(Refused):
        reader.read(HOSTILE[kind])
    assert reader.read(b"\x80\x02K\x07.") == 7, "the child goes on"


def test_damaged_pickles_are_refused_or_read_never_anything_else() -> None:
    data = io.BytesIO()
    torch.save({"a": torch.ones(2), "b": [1, 2.5, None, (True, "x")]}, data)
    whole = zipfile.ZipFile(data).read("archive/data.pkl")
    draw = random.Random(0)
    refused = 0
    for _ in range(3000):
        some = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            some[draw.randrange(len(some))] = draw.randrange(256)
        try:
            decode(ValueEncoder(len(some)).encode(PickleMachine(bytes(some), LISTED).run()))
        except Refused:
            refused += 1
    assert refused > 500


def test_values_come_through_as_they_were(reader: PickleReader) -> None:
    given = {"a": [1, -2, 2**70, 0.5, float("inf"), None, True, "ü", b"\x00\xff"], "b": (1, (2,)), 3: {}}
    found = as_dict(reader.read(pickle.dumps(given, 4)))
    assert found.get("a") == given["a"] and found.get("b") == given["b"]
    assert as_dict(found.get(3)).pairs == []


def test_the_child_can_open_nothing(tmp_path: Path) -> None:
    program = """
import os, socket
from paceline.checkpoint.convert.pickle_reader.sandboxed_reader import shut_in
walls = shut_in()
for attempt in (lambda: open(%r), lambda: open(%r, "w"), socket.socket, os.fork, lambda: os.dup(0)):
    try:
        attempt()
        print("DONE")
    except (OSError, PermissionError):
        print("refused")
print(walls)
"""
    secret = tmp_path / "secret"
    secret.write_text("x")
    root = str(Path(__file__).parents[3])
    argv = [sys.executable, "-c", program % (str(secret), str(tmp_path / "new"))]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=root, timeout=240, check=False)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["refused"] * 3 and "DONE" not in (lines[4:5] or ["DONE"]), done.stderr
    if "seccomp" in lines[5]:
        assert lines[3] == "refused"


def archive(**records: bytes) -> bytearray:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for name, content in records.items():
            made.writestr(name.replace("__", "/"), content)
    return bytearray(data.getvalue())


def patched(data: bytearray, at: int, text: bytes) -> bytearray:
    data[at : at + len(text)] = text
    return data


def lying(kind: str) -> bytes:
    """An archive that is sound but for one lie."""
    data = archive(a__data_pkl=b"\x80\x02N.", a__data__0=b"12345678")
    central = data.rfind(b"PK\x01\x02", 0, data.rfind(b"PK\x05\x06"))
    end = data.rfind(b"PK\x05\x06")
    made: dict[str, Callable[[], bytearray]] = {
        "size": lambda: patched(data, central + 20, struct.pack("<II", 1 << 30, 1 << 30)),
        "place": lambda: patched(data, central + 42, struct.pack("<I", 1 << 20)),
        "count": lambda: patched(data, end + 8, struct.pack("<HH", 60000, 60000)),
        "count64": lambda: patched(
            data, end + 8, struct.pack("<HHII", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
        ),
        "cut": lambda: data[: end - 3],
        "sum": lambda: patched(data, data.find(b"12345678"), b"9"),
        "encrypted": lambda: patched(data, central + 8, struct.pack("<H", 1)),
        "volumes": lambda: patched(data, end + 4, struct.pack("<H", 3)),
    }
    return bytes(made[kind]())


@pytest.mark.parametrize("kind", ["size", "place", "count", "count64", "cut", "sum", "encrypted", "volumes"])
def test_an_archive_that_lies_is_refused(kind: str) -> None:
    with pytest.raises(Refused):
        opened = TorchArchive(memoryview(lying(kind)))
        opened.read("data/0")


def test_a_record_within_another_is_refused() -> None:
    inner = archive(a__data_pkl=b"", a__data__1=b"1234")
    local = inner[inner.rfind(b"PK\x03\x04") : inner.find(b"PK\x01\x02")]
    data = archive(a__data_pkl=b"\x80\x02N.", a__data__0=bytes(local), a__data__1=b"1234")
    last = data.rfind(b"PK\x01\x02")
    found = bytes(patched(data, last + 42, struct.pack("<I", data.find(local))))
    with pytest.raises(Refused, match="over another"):
        TorchArchive(memoryview(found))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b/c", "a//b", "a/b\n"])
def test_a_name_that_leads_out_of_an_archive_is_refused(name: str) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02N.")
        made.writestr(zipfile.ZipInfo("x" * len(name)), b"x")
    found = data.getvalue().replace(b"x" * len(name), name.encode())
    with pytest.raises(Refused, match="name"):
        TorchArchive(memoryview(found))


def test_a_compressed_record_is_refused() -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a/data.pkl", b"\x80\x02N.")
        made.writestr("a/data/0", b"\0" * (1 << 20))
    with pytest.raises(Refused, match="compressed"):
        TorchArchive(memoryview(data.getvalue()))


class Claimed:
    """Pickles as a tensor of a storage, with what is claimed of it."""

    def __init__(self, *claims: Any) -> None:
        self.claims = claims

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.claims


CLAIMS = {
    "a giant shape": ((0, (1 << 40,), (0,)), 2),
    "beyond its storage": ((1, (2,), (1,)), 2),
    "beyond by strides": ((0, (2,), (5,)), 2),
    "negative": ((-1, (1,), (1,)), 2),
    "another number of strides": ((0, (1, 1), (1,)), 2),
    "another size of the storage": ((0, (2,), (1,)), 200),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_tensor_that_claims_more_than_its_storage_is_refused(
    reader: PickleReader, tmp_path: Path, kind: str
) -> None:
    (offset, shape, stride), numel = CLAIMS[kind]

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if thing == "here" else None

    said = io.BytesIO()
    Pickler(said, 2).dump({"w": Claimed("here", offset, shape, stride, False, None)})
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("x/data.pkl", said.getvalue())
        made.writestr("x/data/0", struct.pack("<2f", 1, 2))
    opened = MappedFiles(reader).torch_file(path)
    with pytest.raises(CheckpointError) as error:
        opened.tensor(as_dict(opened.content).get("w"))
    assert error.value.diagnostics[0].code == "convert.refused" and "x.pt" in str(error.value)


def test_an_index_that_names_a_file_elsewhere_is_refused(sound: Path, tmp_path: Path) -> None:
    folder = copy_of(sound, tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../../secret.safetensors"}}')
    assert "secret" in refusal(folder, tmp_path / "ours")


@pytest.mark.parametrize("bin_weights", [False, True])
def test_what_is_sound_is_read_as_torch_reads_it(tmp_path: Path, bin_weights: bool) -> None:
    model, optimizer = write_trainer_folder(tmp_path / "checkpoint-2", bin_weights=bin_weights)
    report = convert(tmp_path / "checkpoint-2", tmp_path / "ours")
    assert report.written.step == 2
    with CheckpointReader(report.written.path) as found:
        parameters = dict(model.named_parameters())
        assert found.parameters("policy") == set(parameters)
        for name, parameter in parameters.items():
            assert torch.equal(found.read("policy", name, "param"), parameter)
            for kind, value in optimizer.state[parameter].items():
                assert torch.equal(found.read("policy", name, kind), value), (name, kind)


@pytest.mark.parametrize("named", [True, False])
def test_moments_in_an_order_that_nothing_says_are_refused(sound: Path, tmp_path: Path, named: bool) -> None:
    """One group is none of Trainer's: its names are taken where the file has them, in whatever order."""
    folder, model = copy_of(sound, tmp_path), tiny_llama()
    given = list(model.named_parameters())[::-1]
    optimizer = stepped(model, torch.optim.AdamW(given if named else [p for _, p in given], lr=1e-2))
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    if not named:
        assert "the file has no names of them" in refusal(folder, tmp_path / "ours")
        assert convert(folder, tmp_path / "ours", moments=False).written.num_moments == 0
        return
    with CheckpointReader(convert(folder, tmp_path / "ours").written.path) as found:
        for name, parameter in given:
            kept = found.read("policy", name, "exp_avg")
            assert torch.equal(kept, optimizer.state[parameter]["exp_avg"]), name


def test_names_of_moments_that_are_none_of_the_models_are_refused(sound: Path, tmp_path: Path) -> None:
    folder = copy_of(sound, tmp_path)
    saved = torch.load(folder / "optimizer.pt", weights_only=True)
    for group in saved["param_groups"]:
        group["param_names"] = [f"other.{number}" for number in group["params"]]
    torch.save(saved, folder / "optimizer.pt")
    assert "other.0" in refusal(folder, tmp_path / "ours")


def test_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary"))).close()  # noqa: S301
    assert (tmp_path / "canary").exists()


def test_the_verb_says_what_it_did_and_writes_over_nothing(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(sound), "--to", str(tmp_path / "ours")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 2 and "no further open file" in found["walls"] and len(found["left"]) == 3
    assert main(command) == 2 and "export.destination" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--step", "7", "--weights-only"]) == 0
    assert "step-00000007" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "ours"), "--to", str(tmp_path / "x")]) == 1
    assert "--dcp" in capsys.readouterr().err
    assert main(["convert", str(tmp_path), "--to", str(tmp_path / "x")]) == 1
    assert "convert.unknown" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "ours")]) == 0
