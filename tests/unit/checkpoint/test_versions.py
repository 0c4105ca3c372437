"""Checkpoints of former and of later versions of the manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import xxhash
from checkpoint_samples import sample_shards

from paceline.checkpoint.format.manifest import digest_of
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

Save = Callable[..., Path]
# A run of two steps under fsdp in two processes, by the code of commit 3b6e39d; what its reader read.
VERSION_1 = Path(__file__).parent / "version_1"
READ_THEN = "80cf619a70c343a3271feb797273f99e6af84782f68f2fea4a96a01dde5ff9c0"
# ``sample_shards(2)`` by the code of commit 2c27ba8b; what its reader read.
VERSION_2 = Path(__file__).parent / "version_2"
READ_OF_2 = "3077a7ecaf506251a0431acf4ff93b9cc0dc4907ff9a0142cf05b3fc0226448d"


def digest_of_tensors(reader: CheckpointReader) -> str:
    digest = hashlib.sha256()
    for t in reader.names():
        tensor = reader.read(t.role, t.name, t.kind)
        digest.update(f"{t.encode()}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_a_checkpoint_of_version_1_is_read_bit_for_bit() -> None:
    path = find_checkpoint("latest", RunDir.at(VERSION_1))
    assert path is not None
    with CheckpointReader(path) as reader:
        assert reader.manifest.tensors is None and (reader.step, reader.manifest.world_size) == (2, 2)
        assert len(list(reader.names())) == 80 and digest_of_tensors(reader) == READ_THEN
        assert json.loads(reader.side_file("config.json"))["model_type"] == "llama"


def test_a_checkpoint_of_version_2_is_read_bit_for_bit() -> None:
    path = find_checkpoint("latest", RunDir.at(VERSION_2))
    assert path is not None
    with CheckpointReader(path) as reader:
        assert (reader.manifest.version, reader.manifest.grain.leaf_hash) == (2, "sha256")
        assert len(list(reader.names())) == 4 and digest_of_tensors(reader) == READ_OF_2


@pytest.mark.parametrize(
    ("version", "file"),
    [
        (VERSION_1, "shard-00001-of-00002.safetensors"),
        (VERSION_1, "state.json"),
        (VERSION_1, "hf/config.json"),
        (VERSION_2, "shard-00000-of-00001.safetensors"),
        (VERSION_2, "state.json"),
    ],
)
def test_damage_of_a_former_version_is_named(tmp_path: Path, version: Path, file: str) -> None:
    shutil.copytree(version / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000002"
    data = bytearray((path / file).read_bytes())
    data[-2] ^= 1
    (path / file).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"checkpoint\.damaged") as caught:
        CheckpointReader(path)
    assert file in str(caught.value)


def make_newer(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest |= {"version": 4, "paceline_version": "99.1", "something_new": True}
    del manifest["digest"]
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))


def test_a_newer_version_is_refused_as_newer_and_not_passed_over(run: RunDir, save: Save) -> None:
    save(1)
    newer = save(2)
    make_newer(newer)
    for where in ("latest", "auto", str(newer), str(run.root)):
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(where, run)
        (found,) = caught.value.diagnostics
        assert found.code == "checkpoint.newer" and "99.1" in found.found and "not damaged" in found.what
    save(3)  # a later one is complete: nothing is lost by taking it
    assert find_checkpoint("latest", run) == run.checkpoint(3)


def test_what_is_written_now_is_version_3_with_blocks_and_an_index(save: Save) -> None:
    data = json.loads((save(3) / "manifest.json").read_text())
    shard = "shard-00000-of-00001.safetensors"
    assert (data["version"], data["block_bytes"], data["leaf_bytes"]) == (3, 64 << 20, 256 << 10)
    assert data["leaf_hash"] == "xxh3_128"
    content = (data["files"][shard]["bytes"], data["files"][shard]["data"])
    raw = (save(3) / shard).read_bytes()
    assert content == (len(raw), 8 + int.from_bytes(raw[:8], "little"))
    leaf = xxhash.xxh3_128(raw).digest()
    assert data["files"][shard]["blocks"] == [hashlib.sha256(leaf).hexdigest()]
    weight = sample_shards(3)[0].tensor
    entry = data["tensors"]["policy|param|model.w.weight"]
    first = content[1] + entry["start"][0]
    assert raw[first : first + weight.nbytes] == weight.numpy().tobytes()
    assert entry["shape"] == [3, 4] and entry["file"] == [0, 0, 1] and "offsets" not in entry
