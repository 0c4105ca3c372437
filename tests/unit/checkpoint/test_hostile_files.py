"""Checkpoints from strangers (S01, S02, S07, S08, S21, S22, S23): refused before anything is run, followed
or allocated.
"""

import hashlib
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.checkpoint.format.block_hashes import BlockHash, BlockSizes
from paceline.checkpoint.format.manifest import Manifest, digest_of, is_safe_name
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

Save = Callable[..., Path]
SHARD = "shard-00000-of-00001.safetensors"
SLOTS = [SHARD, "state.json", "manifest.json", "hf/config.json", "hf/tokenizer.json"]
MORE_SLOTS = [
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "scaler.pt",
    "ema.bin",
    "value_head.bin",
    "hf/adapter_model.bin",
    "dataloader.pkl",
    "x.ckpt",
]


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.canary), "w")


def forge(checkpoint: Path, name: str, data: bytes, version: int = 3) -> None:
    """Replace a file and make the manifest agree: an attacker who knows the format."""
    (checkpoint / name).write_bytes(data)
    if name == "manifest.json":
        return
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    if version < manifest["version"]:
        manifest.pop("leaf_hash", None)
        manifest["version"] = version
    if version == 1 and "tensors" in manifest:
        manifest = {k: v for k, v in manifest.items() if k not in ("tensors", "block_bytes", "leaf_bytes")}
        for one in manifest["files"]:
            manifest["files"][one] = whole_file((checkpoint / one).read_bytes())
    if manifest["version"] > 1 and name.endswith(".safetensors"):
        blocks = BlockHash(BlockSizes(leaf_hash=manifest.get("leaf_hash", "sha256")))
        blocks.update(memoryview(data))
        start = min(max(8 + int.from_bytes(data[:8], "little"), 8), max(8, len(data)))
        manifest["files"][name] = {"bytes": len(data), "data": start, "blocks": list(blocks.hashes())}
    else:
        manifest["files"][name] = whole_file(data)
    manifest.pop("digest", None)
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))


def whole_file(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def pickles(canary: Path) -> dict[str, bytes]:
    raw = pickle.dumps(Bomb(canary))
    as_zip, as_tar = io.BytesIO(), io.BytesIO()
    torch.save(Bomb(canary), as_zip)
    with tarfile.open(fileobj=as_tar, mode="w") as tar:
        info = tarfile.TarInfo("pickle")
        info.size = len(raw)
        tar.addfile(info, io.BytesIO(raw))
    legacy = io.BytesIO()
    torch.save(Bomb(canary), legacy, _use_new_zipfile_serialization=False)
    plain_zip = io.BytesIO()
    with zipfile.ZipFile(plain_zip, "w") as archive:
        archive.writestr("archive/data.pkl", raw)
    return {
        "raw": raw,
        "zip": as_zip.getvalue(),
        "tar": as_tar.getvalue(),
        "legacy": legacy.getvalue(),
        "plain_zip": plain_zip.getvalue(),
    }


@pytest.mark.parametrize("form", ["raw", "zip", "tar", "legacy", "plain_zip"])
def test_the_bombs_work(tmp_path: Path, form: str) -> None:
    """The test below can fail: the naive way of loading sets the canary."""
    canary = tmp_path / "canary"
    data = pickles(canary)[form]
    if form in ("zip", "legacy"):
        torch.load(io.BytesIO(data), weights_only=False).close()
    elif form == "raw":
        pickle.loads(data).close()  # noqa: S301
    assert canary.exists() or form in ("tar", "plain_zip")


@pytest.mark.parametrize("forged", [False, True], ids=["swapped", "forged"])
@pytest.mark.parametrize("form", ["raw", "zip", "tar", "legacy", "plain_zip"])
@pytest.mark.parametrize("slot", SLOTS)
def test_a_pickle_in_any_slot_is_refused(
    run: RunDir, save: Save, tmp_path: Path, slot: str, form: str, forged: bool
) -> None:
    path, canary = save(1), tmp_path / "canary"
    data = pickles(canary)[form]
    if forged:
        forge(path, slot, data)
    else:
        (path / slot).write_bytes(data)
    if forged and slot.startswith("hf/"):  # bytes that we only hand on: never parsed here
        with CheckpointReader(path) as reader:
            assert reader.side_file(slot[3:]) == data
    else:
        with pytest.raises(CheckpointError):
            CheckpointReader(path)
        if not forged:
            with pytest.raises(CheckpointError):
                find_checkpoint("latest", run)
    assert not canary.exists()


@pytest.mark.parametrize("slot", MORE_SLOTS)
@pytest.mark.parametrize("listed", [False, True])
def test_a_pickle_beside_our_files_is_refused(save: Save, tmp_path: Path, slot: str, listed: bool) -> None:
    path, canary = save(1), tmp_path / "canary"
    if listed:
        forge(path, slot, pickles(canary)["zip"])
    else:
        (path / slot).write_bytes(pickles(canary)["zip"])
    with pytest.raises(CheckpointError, match="foreign_file"):
        CheckpointReader(path)
    assert not canary.exists()


class Command:
    """Unpickled, it runs a shell command: what a metadata file of torch.distributed.checkpoint may be."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "hf/.metadata"])
def test_metadata_of_torch_that_names_os_system_is_refused(save: Save, tmp_path: Path, name: str) -> None:
    path, canary = save(1), tmp_path / "canary"
    (path / name).write_bytes(pickle.dumps(Command(canary)))
    assert b"system" in (path / name).read_bytes()
    with pytest.raises(CheckpointError, match="foreign_file") as caught:
        CheckpointReader(path)
    assert Path(name).name in str(caught.value) and not canary.exists()


def test_a_folder_of_torchs_checkpoint_is_named_and_not_read(run: RunDir, tmp_path: Path) -> None:
    folder, canary = tmp_path / "dcp", tmp_path / "canary"
    folder.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (folder / name).write_bytes(pickle.dumps(Command(canary)))
    with pytest.raises(CheckpointError, match="not_a_checkpoint"):
        find_checkpoint(str(folder), run)
    with pytest.raises(CheckpointError):
        CheckpointReader(folder)
    assert not canary.exists()


def test_a_whole_file_that_is_a_pickle_named_safetensors_is_refused(save: Save, tmp_path: Path) -> None:
    path, canary = save(1), tmp_path / "canary"
    for version in (3, 2, 1):
        forge(path, SHARD, pickle.dumps(Command(canary)), version)
        with pytest.raises(CheckpointError) as caught:
            CheckpointReader(path)
        assert SHARD in str(caught.value) and not canary.exists()


def forge_index(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest's index, and make its digest agree."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    change(manifest)
    manifest.pop("digest")
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))


INDEXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another_place": lambda m: m["tensors"]["policy|param|model.w.weight"].update(start=[16, 0, 1]),
    "beyond_the_file": lambda m: m["tensors"]["policy|param|model.w.weight"].update(start=[1 << 50, 0, 1]),
    "another_shape": lambda m: m["tensors"]["policy|param|model.w.weight"].update(shape=[1 << 40, 1 << 40]),
    "another_dtype": lambda m: m["tensors"]["policy|param|model.w.weight"].update(dtype="F64"),
    "a_dtype_that_is_none": lambda m: m["tensors"]["policy|param|model.w.weight"].update(dtype="PICKLE"),
    "a_tensor_too_few": lambda m: m["tensors"].pop("policy|param|model.w.weight"),
    "a_tensor_too_many": lambda m: m["tensors"].update(
        {"policy|param|x": dict(m["tensors"]["policy|param|model.w.weight"])}
    ),
    "a_name_that_is_not_ours": lambda m: m["tensors"].update({"../x": m["tensors"].popitem()[1]}),
    "a_giant_count": lambda m: m["tensors"]["policy|param|model.w.weight"].update(file=[0, 0, 1 << 52]),
    "a_hash_that_is_none": lambda m: m.update(leaf_hash="crc32"),
    "leaves_without_end": lambda m: m.update(leaf_bytes=1),
    "blocks_without_end": lambda m: m.update(block_bytes=1 << 52),
    "header_of_another_length": lambda m: m["files"][SHARD].update(data=16),
    "too_few_blocks": lambda m: m["files"][SHARD].update(blocks=[]),
    "too_many_blocks": lambda m: m["files"][SHARD].update(blocks=["0" * 64] * 1000),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_that_lies_is_refused_before_memory_is_asked_for(
    save: Save, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = save(1)
    forge_index(path, INDEXES[kind])
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(CheckpointError, match=r"checkpoint\.(damaged|manifest)"):
        CheckpointReader(path)


def test_nothing_else_is_tried_when_the_safe_way_fails(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(1)
    called: list[str] = []
    monkeypatch.setattr(torch, "load", lambda *a, **k: called.append("torch.load"))
    monkeypatch.setattr(pickle, "load", lambda *a, **k: called.append("pickle.load"))
    monkeypatch.setattr(pickle, "loads", lambda *a, **k: called.append("pickle.loads"))
    forge(path, SHARD, b"\x80\x04N.")
    with pytest.raises(CheckpointError):
        CheckpointReader(path)
    assert called == []


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "",
        "hf/../x",
        "hf/",
        "hf//x",
        "a/b",
        "HF/x",
        "x\0y",
        "C:\\x",
        "\\\\host\\x",
        ".hidden",
        "a b",
        "ü",
        "x\n",
        "hf/.x",
        "a" * 300,
    ],
)
def test_names_that_leave_the_folder_are_refused(save: Save, name: str) -> None:
    assert not is_safe_name(name)
    path = save(1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"].pop(SHARD)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="checkpoint.manifest"):
        CheckpointReader(path)


@pytest.mark.parametrize("slot", [SHARD, "state.json", "manifest.json", "hf/config.json"])
def test_a_link_is_not_followed_even_to_the_right_bytes(save: Save, tmp_path: Path, slot: str) -> None:
    path = save(1)
    (path / slot).rename(tmp_path / "outside")
    (path / slot).symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="checkpoint.damaged"):
        CheckpointReader(path)


@pytest.mark.parametrize("slot", [SHARD, "manifest.json"])
def test_a_pipe_does_not_hang(save: Save, slot: str) -> None:
    path = save(1)
    (path / slot).unlink()
    os.mkfifo(path / slot)
    with pytest.raises(CheckpointError):
        CheckpointReader(path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
KEY = "policy|param|w"


def tensor_file(header: Any, body: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "seven_bytes": b"\0" * 7,
    "longer_than_file": tensor_file({KEY: GOOD}, length=1 << 40),
    "largest_length": tensor_file({KEY: GOOD}, length=(1 << 64) - 1),
    "no_json": tensor_file(b"{nonsense"),
    "list": tensor_file(b"[]"),
    "duplicate_key": tensor_file(
        b'{"a|b|c":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a|b|c":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
    ),
    "overlap": tensor_file({"a|b|c": GOOD, "a|b|d": {**GOOD, "data_offsets": [4, 12]}}, b"\0" * 12),
    "same_place": tensor_file({"a|b|c": GOOD, "a|b|d": GOOD}),
    "hole": tensor_file({"a|b|c": GOOD, "a|b|d": {**GOOD, "data_offsets": [12, 20]}}, b"\0" * 20),
    "rest": tensor_file({KEY: GOOD}, b"\0" * 9),
    "beyond": tensor_file({KEY: GOOD}, b"\0" * 7),
    "shape_mismatch": tensor_file({KEY: {**GOOD, "shape": [3]}}),
    "huge_shape": tensor_file({KEY: {**GOOD, "shape": [1 << 40, 1 << 40]}}),
    "wrapping_shape": tensor_file({KEY: {**GOOD, "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}}, b""),
    "negative": tensor_file({KEY: {**GOOD, "shape": [-2]}}),
    "backwards": tensor_file({KEY: {**GOOD, "data_offsets": [8, 0]}}),
    "float_shape": tensor_file({KEY: {**GOOD, "shape": [2.0]}}),
    "bool_shape": tensor_file({KEY: {"dtype": "F64", "shape": [True], "data_offsets": [0, 8]}}),
    "dtype": tensor_file({KEY: {**GOOD, "dtype": "PICKLE"}}),
    "dtype_list": tensor_file({KEY: {**GOOD, "dtype": ["F32"]}}),
    "extra_key": tensor_file({KEY: {**GOOD, "code": "x"}}),
    "many_dims": tensor_file({KEY: {**GOOD, "shape": [1] * 64 + [2]}}),
    "deep": tensor_file(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "metadata": tensor_file({"__metadata__": {"a": 1}, KEY: GOOD}),
    "name": tensor_file({"w": GOOD}),
    "name_encoding": tensor_file({"policy|param|a%zz": GOOD}),
    "place_outside": tensor_file({"__metadata__": {KEY: '{"global_shape":[3],"offsets":[2]}'}, KEY: GOOD}),
    "place_dims": tensor_file({"__metadata__": {KEY: '{"global_shape":[3,3],"offsets":[0,0]}'}, KEY: GOOD}),
    "place_nonsense": tensor_file({"__metadata__": {KEY: "{"}, KEY: GOOD}),
    "nan": tensor_file(b'{"__metadata__":{},"a|b|c":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'),
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", HEADERS)
def test_a_bad_tensor_file_is_refused_before_memory_is_asked_for(
    save: Save, monkeypatch: pytest.MonkeyPatch, kind: str, version: int
) -> None:
    path = save(1)
    forge(path, SHARD, HEADERS[kind], version)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path)
    assert SHARD in str(caught.value)


def test_a_good_forged_tensor_file_is_read(save: Save) -> None:
    """The cases above differ from this one in what they name."""
    path = save(1)
    forge(path, SHARD, tensor_file({KEY: GOOD}), version=1)
    with CheckpointReader(path) as reader:
        assert torch.equal(reader.read("policy", "w", "param"), torch.zeros(2))


def test_two_shards_that_disagree_on_a_tensor_are_refused(save: Save) -> None:
    path = save(1)
    forge(path, SHARD, tensor_file({KEY: GOOD}), version=1)
    forge(
        path,
        "shard-00001-of-00001.safetensors",
        tensor_file({KEY: {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}),
    )
    with pytest.raises(CheckpointError, match="another shape or dtype"):
        CheckpointReader(path)


def test_hashes_are_compared_before_anything_is_parsed(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(1)
    (path / "state.json").write_bytes(
        b'{"train": {"step": 9}}'[: (path / "state.json").stat().st_size].ljust(
            (path / "state.json").stat().st_size
        )
    )
    monkeypatch.setattr("paceline.checkpoint.load.reader.parse_object", lambda *a, **k: pytest.fail("parsed"))
    with pytest.raises(CheckpointError, match="sha256"):
        CheckpointReader(path)


BASE = {
    "format": "paceline-checkpoint",
    "version": 1,
    "step": 1,
    "sequence": 1,
    "world_size": 1,
    "created": 0.0,
    "paceline_version": "0",
}
ENTRY = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "torch"},
        {"version": 2},
        {"version": 3},
        {"version": 4},
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"step": -1},
        {"step": 1.0},
        {"step": True},
        {"step": 1 << 60},
        {"step": "1"},
        {"world_size": 0},
        {"created": "now"},
        {"paceline_version": 1},
        {"files": {}},
        {"files": []},
        {"files": None},
        {"more": 1},
        {"sequence": None},
        {"files": {"a": {**ENTRY, "bytes": -1}}},
        {"files": {"a": {**ENTRY, "bytes": 1.5}}},
        {"files": {"a": {**ENTRY, "sha256": "0" * 63}}},
        {"files": {"a": {**ENTRY, "sha256": "G" * 64}}},
        {"files": {"a": {**ENTRY, "sha256": 0}}},
        {"files": {"a": {**ENTRY, "x": 1}}},
        {"files": {"a": 1}},
        {"files": {"manifest.json": ENTRY}},
    ],
)
def test_a_manifest_out_of_shape_is_refused(change: dict[str, Any]) -> None:
    good = {**BASE, "files": {"state.json": ENTRY}}
    assert Manifest.from_bytes(json.dumps(good).encode(), "m").step == 1
    with pytest.raises(CheckpointError):
        Manifest.from_bytes(json.dumps({**good, **change}).encode(), "m")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b"[" * 100_000,
        b'{"a":' * 50 + b"1" + b"}" * 50,
        b"\xff\xfe",
        b'{"a":"' + b"x" * 2000 + b'"}',
        b'{"a":1}x',
    ],
    ids=range(11),
)
def test_json_that_is_not_ours_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="checkpoint.json"):
        parse_object(data, "f", max_bytes=1000, max_depth=8)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(CheckpointError, match="more than 10 values"):
        parse_object(b'{"a":[1,2,3,4,5,6,7,8,9,10]}', "f", max_bytes=1000, max_items=10)


def test_too_many_files_are_refused() -> None:
    many = {**BASE, "files": {f"f{i}": ENTRY for i in range(100_001)}}
    with pytest.raises(CheckpointError):
        Manifest.from_bytes(json.dumps(many).encode(), "m")
