"""The publish protocol: round trips, agreement of ranks, retention, full disks."""

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_samples import FILES, OneRank, on_ranks, sample_shards, whole
from safetensors.torch import load_file

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format import durable_files
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, DataError
from paceline.core.rundir import RunDir
from paceline.protocols.shard import Shard

Save = Callable[..., Path]


def names_in(run: RunDir) -> list[str]:
    return sorted(p.name for p in run.checkpoints.iterdir())


def test_every_bit_comes_back(run: RunDir, save: Save) -> None:
    path = save(7)
    assert path == run.checkpoint(7)
    with CheckpointReader(path) as reader:
        assert (reader.step, reader.state, reader.manifest.world_size) == (7, {"train": {"step": 7}}, 1)
        for shard in sample_shards(7):
            back = reader.read(shard.role, shard.name, shard.kind)
            assert (
                back.dtype == shard.tensor.dtype
                and back.shape == shard.tensor.shape
                and torch.equal(back, shard.tensor)
            )
        assert reader.kinds("policy", "model.w.weight") == ("exp_avg", "param", "step")
        assert not reader.has("policy", "model.w.weight", "exp_avg_sq")
        assert reader.side_file("config.json") == FILES["config.json"]
        assert sorted(reader.side_files()) == sorted(FILES)


def test_bits_that_arithmetic_would_lose(run: RunDir) -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, -3.4e38])
    strange = [
        whole("x", odd),
        whole("empty", torch.empty(0, 3)),
        whole("flag", torch.tensor([True, False])),
        whole("n", torch.tensor(-(2**62))),
    ]
    # not contiguous, and a name that needs encoding
    strange.append(whole("é|%/..", torch.ones(2, 2).t()[:, :1]))
    with CheckpointReader(Checkpointer(run, OneRank()).save(1, strange, {}, {})) as reader:
        assert torch.equal(reader.read("policy", "x", "param").view(torch.int32), odd.view(torch.int32))
        for shard in strange[1:]:
            assert torch.equal(reader.read("policy", shard.name, "param"), shard.tensor)


def test_the_library_reads_our_files(save: Save) -> None:
    tensors = load_file(save(3) / "shard-00000-of-00001.safetensors")
    assert torch.equal(tensors["policy|exp_avg|model.w.weight"], sample_shards(3)[1].tensor)


def test_state_floats_are_exact(run: RunDir) -> None:
    state = {"best": 0.1 + 0.2, "deep": [{"x": 1e-300}], "none": None, "big": 2**63}
    with CheckpointReader(Checkpointer(run, OneRank()).save(1, [], state, {})) as reader:
        assert reader.state == state


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"a": {"b": [1, float("nan")]}}, "a.b[1]"),
        ({"a": b"x"}, "a"),
        ({"a": {1: 2}}, "a"),
        ({"t": torch.ones(1)}, "t"),
    ],
)
def test_state_that_is_no_json_is_named(run: RunDir, bad: dict, path: str) -> None:
    with pytest.raises(CheckpointError, match="state_not_json") as caught:
        Checkpointer(run, OneRank()).save(1, [], bad, {})
    assert f"'{path}'" in str(caught.value)
    assert names_in(run) == []


def test_two_ranks_write_their_own_blocks_and_any_block_is_read(run: RunDir) -> None:
    whole_w = torch.arange(24, dtype=torch.float32).reshape(6, 4)

    def work(world: object) -> Path:
        rank = world.rank  # type: ignore[attr-defined]
        block = Shard("policy", "w", "param", (6, 4), (3 * rank, 0), whole_w[3 * rank : 3 * rank + 3])
        column = Shard("policy", "c", "param", (6, 4), (0, 2 * rank), whole_w[:, 2 * rank : 2 * rank + 2])
        return Checkpointer(run, world).save(4, [block, column], {"rank0": True}, FILES)  # type: ignore[arg-type]

    assert on_ranks(2, work) == [run.checkpoint(4)] * 2
    saver = Checkpointer(run, OneRank())
    assert saver.last is None
    saver.save(3, sample_shards(3), {}, FILES)
    files = [p for p in run.checkpoint(3).rglob("*") if p.is_file() and p.name != "manifest.json"]
    assert saver.last is not None and saver.last.num_bytes == sum(p.stat().st_size for p in files)
    with CheckpointReader(run.checkpoint(4)) as reader:
        assert reader.manifest.world_size == 2
        for name in ("w", "c"):
            assert torch.equal(reader.read("policy", name, "param"), whole_w)
            assert torch.equal(reader.read_block("policy", name, "param", (2, 1), (3, 2)), whole_w[2:5, 1:3])


def test_a_tensor_with_a_missing_part_is_refused(run: RunDir) -> None:
    Checkpointer(run, OneRank()).save(
        1, [Shard("policy", "w", "param", (6, 4), (0, 0), torch.ones(3, 4))], {}, {}
    )
    with CheckpointReader(run.checkpoint(1)) as reader:
        assert torch.equal(reader.read_block("policy", "w", "param", (1, 0), (2, 4)), torch.ones(2, 4))
        with pytest.raises(CheckpointError, match="tensor_incomplete") as caught:
            reader.read("policy", "w", "param")
    assert "12 elements" in str(caught.value)


def test_a_tensor_that_was_not_saved_is_named(save: Save) -> None:
    with CheckpointReader(save(1)) as reader, pytest.raises(CheckpointError, match="no_tensor") as caught:
        reader.read("policy", "model.b.bias", "exp_avg")
    assert "kinds stored for it: param" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "x"), "checkpoint.disk_full"),
        (OSError(errno.EIO, "x"), "checkpoint.io"),
        (ValueError("odd"), "checkpoint.save_failed"),
        (DataError(Diagnostic("own.code", "own words")), "own.code"),
    ],
)
def test_an_error_on_one_rank_is_the_same_error_on_all(
    run: RunDir, save: Save, error: Exception, code: str
) -> None:
    save(1)
    before = names_in(run)

    def work(world: object) -> Path:
        def shards():  # type: ignore[no-untyped-def]
            yield whole(f"w{world.rank}", torch.ones(2))  # type: ignore[attr-defined]
            if world.rank == 1:  # type: ignore[attr-defined]
                raise error

        return Checkpointer(run, world).save(2, shards(), {}, FILES)  # type: ignore[arg-type]

    answers = on_ranks(3, work)
    assert [type(a) for a in answers] == [CheckpointError] * 3
    assert {a.diagnostics[0].code for a in answers} == {code}
    assert {a.diagnostics[0].evidence["rank"] for a in answers} == {1}
    assert answers[1].__cause__ is error
    assert names_in(run) == before


def test_retention_keeps_the_newest_and_the_protected(run: RunDir) -> None:
    saver = Checkpointer(run, OneRank(), keep=2)
    for step in (1, 2, 3, 4, 5):
        if step == 2:
            saver.protect(2)
        saver.save(step, sample_shards(step), {}, {})
    assert [n for n in names_in(run) if n.startswith("step")] == [
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ]
    again = Checkpointer(run, OneRank(), keep=1)  # the protection survives a restart
    again.save(6, sample_shards(6), {}, {})
    assert [n for n in names_in(run) if n.startswith("step")] == ["step-00000002", "step-00000006"]
    again.protect(None)
    again.save(7, sample_shards(7), {}, {})
    assert names_in(run) == ["latest", "step-00000007"]


def test_retention_neither_counts_nor_removes_incomplete_ones(run: RunDir, save: Save) -> None:
    save(1)
    (save(2) / "manifest.json").unlink()
    for step in (3, 4):
        save(step, keep=1)
    assert [n for n in names_in(run) if n.startswith("step")] == ["step-00000002", "step-00000004"]


def test_a_step_saved_again_replaces_the_old_one_and_is_newest(run: RunDir, save: Save) -> None:
    for step in (1, 2, 3):
        save(step)
    path = Checkpointer(run, OneRank()).save(2, [whole("new", torch.ones(1))], {"again": True}, {})
    with CheckpointReader(path) as reader:
        assert reader.state == {"again": True}
    # step 3 belongs to the branch that was given up
    assert find_checkpoint("latest", run) == run.checkpoint(2)
    assert run.latest.read_text() == "step-00000002\n"
    assert names_in(run) == ["latest", "step-00000001", "step-00000002", "step-00000003"]


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "hf/x", "", ".hidden", "a\0b", "manifest.json/..", "C:\\x", "/etc/passwd"]
)
def test_side_files_need_plain_names(run: RunDir, name: str) -> None:
    with pytest.raises(CheckpointError, match="file_name"):
        Checkpointer(run, OneRank()).save(1, [], {}, {name: b""})
    assert names_in(run) == []


def test_a_link_planted_in_the_staging_folder_is_not_followed(run: RunDir, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")

    def plant(point: str) -> None:
        if point == "staging_made":
            (staged,) = run.checkpoints.glob(".staging-*")
            (staged / "shard-00000-of-00001.safetensors").symlink_to(victim)

    with pytest.raises(CheckpointError, match="checkpoint.io"):
        Checkpointer(run, OneRank(), crash=plant).save(1, sample_shards(1), {}, {})
    assert victim.read_text() == "keep" and names_in(run) == []


def test_too_little_room_is_said_before_anything_is_written(
    run: RunDir, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1, 0, 0, 1, 1, 1, 0, 255)))
    monkeypatch.setattr(durable_files, "write_all", lambda fd, view: pytest.fail("wrote"))
    with pytest.raises(CheckpointError, match="disk_full") as caught:
        save(2)
    assert "0 B free" in str(caught.value) and "continues with --resume latest" in str(caught.value)
    assert find_checkpoint("latest", run) == run.checkpoint(1)


@pytest.mark.parametrize("fail_at", [0, 30, 400, 700, 1200])
def test_disk_full_in_the_middle_leaves_everything_as_it_was(
    run: RunDir, save: Save, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    save(1)
    before, left = names_in(run), [fail_at]
    real = durable_files.write_all

    def tight(fd: int, view: memoryview) -> None:
        if len(view) > left[0]:
            real(fd, view[: left[0]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(view)
        real(fd, view)

    monkeypatch.setattr(durable_files, "write_all", tight)
    with pytest.raises(CheckpointError, match="checkpoint.disk_full") as caught:
        save(2)
    assert "unchanged" in str(caught.value)
    assert names_in(run) == before
    monkeypatch.undo()
    assert find_checkpoint("latest", run) == run.checkpoint(1)
    save(2)
    assert find_checkpoint("latest", run) == run.checkpoint(2)


@pytest.fixture
def tiny_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of 256 KiB; needs root and mount."""
    place = tmp_path / "tiny"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    run = RunDir.at(tiny_disk)
    saver = Checkpointer(run, OneRank())
    saver.save(1, [whole("w", torch.ones(20_000))], {}, {})
    with pytest.raises(CheckpointError, match="disk_full"):
        saver.save(2, [whole("w", torch.ones(60_000))], {}, {})
    assert find_checkpoint("latest", run) == run.checkpoint(1)
    assert names_in(run) == ["latest", "step-00000001"]


def test_a_disk_that_is_really_read_only(tiny_disk: Path) -> None:
    run = RunDir.at(tiny_disk)
    Checkpointer(run, OneRank()).save(1, sample_shards(1), {}, {})
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(CheckpointError, match="read_only"):
        Checkpointer(run, OneRank()).save(2, sample_shards(2), {}, {})
    assert find_checkpoint("latest", run) == run.checkpoint(1)


def test_a_failing_hint_is_a_note_and_the_checkpoint_stands(
    run: RunDir, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Checkpointer(run, OneRank())

    def refuse(src: object, dst: object) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "replace", refuse)
    path = saver.save(1, sample_shards(1), {}, {})
    (note,) = saver.take_notes()
    assert note.code == "checkpoint.housekeeping" and saver.take_notes() == []
    assert names_in(run) == ["step-00000001"]
    assert find_checkpoint("latest", run) == path


def test_a_folder_that_a_rank_does_not_see_is_named(run: RunDir, tmp_path: Path) -> None:
    def work(world: object) -> Path:
        here = run if world.rank == 0 else RunDir.at(tmp_path / "elsewhere")  # type: ignore[attr-defined]
        return Checkpointer(here, world).save(1, [], {}, {})  # type: ignore[arg-type]

    answers = on_ranks(2, work)
    assert {a.diagnostics[0].code for a in answers} == {"checkpoint.not_shared"}


def test_keep_zero_is_refused(run: RunDir) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Checkpointer(run, OneRank(), keep=0)


def test_the_same_tensor_twice_is_refused(run: RunDir) -> None:
    with pytest.raises(CheckpointError, match="is given twice"):
        Checkpointer(run, OneRank()).save(1, [whole("w", torch.ones(1))] * 2, {}, {})


def test_the_manifest_says_what_is_there(run: RunDir, save: Save) -> None:
    data = json.loads((save(9) / "manifest.json").read_text())
    assert set(data["files"]) == {
        "shard-00000-of-00001.safetensors",
        "state.json",
        "hf/config.json",
        "hf/tokenizer.json",
    }
    assert (data["step"], data["sequence"]) == (9, 1)
