"""Nodes that do not share the run directory: each of the ranks (threads) here has a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import FILES, ThreadRank, on_ranks, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.format.verify_files import read_state
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.node_local import file_server, shared_disks
from paceline.checkpoint.node_local import resume as nodes_resume
from paceline.checkpoint.node_local.file_server import (
    FileServer,
    RefusedError,
    SharedFiles,
    key_of,
    requested_file,
)
from paceline.checkpoint.node_local.inventory import Survey, parts_in
from paceline.checkpoint.node_local.resume import NodesResume
from paceline.checkpoint.node_local.shared_disks import Disks, find_disks
from paceline.checkpoint.save.retention import being_read
from paceline.config.registries.object_store_url import parse_url
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

SMALL = BlockSizes(128, 64)
SECRET = b"the run's secret"


@dataclass
class Back:
    """What one rank had of a resume."""

    step: int | None
    notes: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)


class Nodes:
    """Folders of nodes, one rank each."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, node: int) -> RunDir:
        return RunDir.at(self.root / f"node-{node}")

    def file(self, node: int, step: int, rank: int, of: int) -> Path:
        return self.run(node).checkpoint(step) / f"shard-{rank:05d}-of-{of:05d}.safetensors"

    def save(self, steps: Sequence[int], count: int = 2, keep: int | None = None, **more: Any) -> list[Any]:
        def work(rank: ThreadRank) -> None:
            disks = Disks(tuple(range(count)))
            for step in steps:
                saver = Checkpointer(self.run(rank.rank), rank, keep, disks=disks, grain=SMALL, **more)
                shards = sample_shards(step)[rank.rank :: count]
                saver.save(step, shards, {"train": {"step": step}}, FILES)

        return on_ranks(count, work)

    def resume(
        self,
        nodes: Sequence[int],
        where: str = "latest",
        secret: Callable[[int], bytes] = lambda rank: SECRET,
        reads: Callable[[int], bool] = lambda rank: True,
    ) -> list[Any]:
        """Rank i on node ``nodes[i]`` opens the newest and reads all of it, if it ``reads``."""

        def work(rank: ThreadRank) -> Back:
            run, notes, damaged = self.run(nodes[rank.rank]), [], {}  # type: ignore[var-annotated]
            disks = Disks(tuple(range(len(nodes))))
            opener = NodesResume(rank, disks, lambda towards: "127.0.0.1", secret(rank.rank))
            try:
                while True:
                    found = opener.find(where, run, notes, damaged)
                    if found is None:
                        return Back(None, [n.what for n in notes], [n.code for n in notes])
                    state = read_state(found.path)
                    with CheckpointReader(
                        found.path, ranks=rank, manifest=found.manifest, state=state, elsewhere=found
                    ) as reader:
                        wanted = sample_shards(reader.step) if reads(rank.rank) else []
                        got = [reader.read(s.role, s.name, s.kind) for s in wanted]
                        try:
                            reader.verify_reads()
                        except CheckpointError as error:
                            damaged[found.path] = error
                            continue
                        assert all(torch.equal(a, s.tensor) for a, s in zip(got, wanted, strict=True))
                        assert reader.side_file("tokenizer.json") == b"{}"
                        said = [*notes, *opener.notes]
                        return Back(reader.step, [n.what for n in said], [n.code for n in said])
            finally:
                opener.close()

        return on_ranks(len(nodes), work)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("leaders", [(0, 0, 0, 0), (0, 0, 2, 2), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2, 3)])
def test_who_shares_a_folder_is_found_out(leaders: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()

    def work(rank: ThreadRank) -> Disks:
        first = rank.rank in leaders or rank.rank % 2 == 1
        return find_disks(rank, tmp_path / str(leaders[rank.rank]), first_on_node=first)

    found = on_ranks(4, work)
    assert found == [Disks(leaders)] * 4
    assert [n.code for n in found[0].notes(tmp_path)] == (["checkpoint.apart"] if any(leaders) else [])
    assert not [*tmp_path.rglob(".disk*")]


@pytest.mark.parametrize("fresh_after", ["open", "own file"])
def test_an_old_listing_does_not_part_who_share_a_folder(
    fresh_after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shared_disks.opens_path

    def opens(path: Path) -> bool:
        written = any(tmp_path.glob(".disk-*-1"))
        return own(path) and (fresh_after == "open" or written)

    monkeypatch.setattr(shared_disks, "opens_path", opens)
    monkeypatch.setattr(os, "listdir", lambda folder: [])
    monkeypatch.setattr(shared_disks, "BETWEEN_SECONDS", 0.01)
    found = on_ranks(2, lambda rank: find_disks(rank, tmp_path, first_on_node=True))
    monkeypatch.undo()
    assert found == [Disks.one(2)] * 2
    assert not [*tmp_path.iterdir()]


def test_each_node_keeps_its_own_and_all_the_manifest(nodes: Nodes) -> None:
    assert nodes.save([1, 2]) == [None, None]
    one, two = (nodes.run(node).checkpoint(2) for node in (0, 1))
    assert names(two) == ["manifest.json", "shard-00001-of-00002.safetensors"]
    assert names(one) == ["hf", "manifest.json", "shard-00000-of-00002.safetensors", "state.json"]
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()
    assert {nodes.run(node).latest.read_text() for node in (0, 1)} == {"step-00000002\n"}


def test_the_same_nodes_fetch_nothing_that_they_do_not_read(nodes: Nodes) -> None:
    nodes.save([1, 2])
    assert [back.step for back in nodes.resume([0, 1], reads=lambda rank: False)] == [2, 2]
    assert not nodes.file(0, 2, 1, 2).exists() and not nodes.file(1, 2, 0, 2).exists()
    assert (nodes.run(1).checkpoint(2) / "state.json").exists(), "what every rank reads is brought"
    back = nodes.resume([0, 1])
    assert [one.step for one in back] == [2, 2]
    assert nodes.file(0, 2, 1, 2).read_bytes() == nodes.file(1, 2, 1, 2).read_bytes()
    assert not [*nodes.root.rglob(".fetched*")] and not [*nodes.root.rglob(".staging*")]


@pytest.mark.parametrize(
    "order",
    [[1, 0], [0, 1, 2], [2, 0, 1], [1, 2, 0, 3]],
    ids=["swapped", "one more", "new first", "two more"],
)
def test_other_nodes_than_before(order: list[int], nodes: Nodes) -> None:
    nodes.save([1, 2])
    assert [back.step for back in nodes.resume(order)] == [2] * len(order)
    for node in order:
        with CheckpointReader(nodes.run(node).checkpoint(2)) as reader:  # whole, and every byte verified
            assert reader.step == 2


def test_an_emptied_disk_is_filled_from_the_others(nodes: Nodes) -> None:
    nodes.save([1, 2], 3)
    nodes.resume([0, 1, 2])
    shutil.rmtree(nodes.run(1).root)
    assert [back.step for back in nodes.resume([1, 2])] == [2, 2]
    assert nodes.file(1, 2, 0, 3).read_bytes() == nodes.file(0, 2, 0, 3).read_bytes()


def test_a_file_that_no_node_has_any_more_takes_the_step_before(nodes: Nodes) -> None:
    nodes.save([1, 2])
    nodes.file(1, 2, 1, 2).unlink()
    back = nodes.resume([0, 1], reads=lambda rank: False)
    assert [one.step for one in back] == [1, 1]
    assert back[0].notes[0] == ("step-00000002 is skipped: no node has shard-00001-of-00002.safetensors"), (
        back[0]
    )
    assert "resume.skipped_incomplete" in back[0].codes
    # And the one before is not whole either: one error, with what is missing and who was asked.
    nodes.file(1, 1, 1, 2).unlink()
    errors = nodes.resume([0, 1])
    assert {error.diagnostics[0].code for error in errors} == {"resume.only_incomplete"}
    found = errors[0].diagnostics[0]
    assert "step-00000001: no node has shard-00001-of-00002" in found.found
    assert f"Asked: {socket.gethostname()} (rank 0), {socket.gethostname()} (rank 1)" in found.found
    assert "copy its step folders" in found.hint


def test_no_checkpoint_anywhere(nodes: Nodes) -> None:
    assert [back.step for back in nodes.resume([0, 1], "auto")] == [None, None]
    assert {e.diagnostics[0].code for e in nodes.resume([0, 1])} == {"resume.no_checkpoint"}
    (nodes.run(1).checkpoints / ".staging-step-00000001-ab").mkdir(parents=True)
    assert [back.codes for back in nodes.resume([0, 1], "auto")] == [["resume.fresh_start"]] * 2


def test_one_checkpoint_by_its_path(nodes: Nodes) -> None:
    nodes.save([1, 2])

    def work(rank: ThreadRank) -> int:
        run = nodes.run(rank.rank)
        opener = NodesResume(rank, Disks((0, 1)), lambda towards: "127.0.0.1", SECRET)
        found = opener.find(str(run.checkpoint(1)), run, [], {})
        opener.close()
        assert found is not None
        return found.manifest.step

    assert on_ranks(2, work) == [1, 1]


@pytest.mark.parametrize("name", ["", "/step-00000001"])
@pytest.mark.parametrize("on", [[0, 1], [0]], ids=["on both", "on rank 0's alone"])
def test_a_checkpoint_that_was_brought_from_a_url(name: str, on: list[int], nodes: Nodes) -> None:
    nodes.save([1])
    nodes.resume([0, 1])  # node 0 has all of it
    url = f"s3://bucket/run{name}"
    for node in on:
        fetched = nodes.run(node).fetched(parse_url(url).folder_name)
        shutil.copytree(nodes.run(0).checkpoint(1), fetched / "step-00000001")
    for node in (0, 1):
        shutil.rmtree(nodes.run(node).checkpoints)
    assert [back.step for back in nodes.resume([0, 1], url)] == [1, 1]
    assert not any(nodes.run(node).checkpoints.exists() for node in (0, 1)), "it lies where it was brought"


def test_no_start_at_step_0_beside_a_checkpoint(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.save([1])
    nodes.resume([0, 1])
    monkeypatch.setattr(nodes_resume, "parts_in", lambda folder, only: [])  # as if it came a moment later
    for where in ("auto", "latest"):
        errors = nodes.resume([0, 1], where)
        assert {error.diagnostics[0].code for error in errors} == {"checkpoint.incomplete"}, where


def test_who_met_at_its_own_name_listens_where_the_others_reach_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's host has the meeting place's name at 127.0.1.1, as Debian's /etc/hosts has."""
    nodes.save([1])
    listening: dict[int, str] = {}
    own = file_server.FileServer

    def served(address: str, key: bytes, opened: Any) -> FileServer:
        listening[opened.__self__._ranks.rank] = address
        return own("127.0.0.1", key, opened)

    monkeypatch.setattr(file_server, "FileServer", served)

    def work(rank: ThreadRank) -> int:
        run = nodes.run(rank.rank)
        towards_met = ["127.0.1.1", "192.0.2.7"][rank.rank]
        routes = {"": towards_met, "192.0.2.7": "192.0.2.1"}
        opener = NodesResume(rank, Disks((0, 1)), lambda towards: routes[towards], SECRET)
        found = opener.find("latest", run, [], {})
        opener.close()
        assert found is not None
        return found.manifest.step

    assert on_ranks(2, work) == [1, 1]
    assert listening == {0: "192.0.2.1", 1: "192.0.2.7"}


def test_another_secret_gets_nothing(nodes: Nodes) -> None:
    nodes.save([1])
    errors = nodes.resume([0, 1], secret=lambda rank: SECRET + bytes([rank]))
    assert {error.diagnostics[0].code for error in errors} == {"checkpoint.not_fetched"}
    assert "another secret" in errors[0].diagnostics[0].found
    there = [path.name for path in nodes.run(1).checkpoint(1).rglob("*") if path.is_file()]
    assert sorted(there) == ["manifest.json", "shard-00001-of-00002.safetensors"]


def test_a_holder_with_other_bytes_is_refused_and_the_next_is_asked(nodes: Nodes) -> None:
    nodes.save([1], 2)
    nodes.resume([0, 1])  # both have both
    flip(nodes.file(0, 1, 0, 2))
    back = nodes.resume([0, 1, 2], reads=lambda rank: rank == 2)
    assert nodes.file(2, 1, 0, 2).read_bytes() == nodes.file(1, 1, 0, 2).read_bytes()
    assert [one.step for one in back] == [1, 1, 1] and "checkpoint.holder_damaged" in back[2].codes
    # Who reads the wrong ones from its own disk is found out, though another rank has read the right ones.
    errors = nodes.resume([0, 1, 2])
    assert {error.diagnostics[0].code for error in errors} == {"resume.only_incomplete"}
    assert "'shard-00000-of-00002.safetensors' differs" in errors[0].diagnostics[0].found


def test_bytes_that_change_on_the_way_are_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.save([1], 2)
    nodes.resume([0, 1])
    sent: list[str] = []
    own = SharedFiles._open_file

    def changed(self: SharedFiles, digest: str, name: str) -> Any:
        file, size = own(self, digest, name)
        if name.endswith(".safetensors") and self._ranks.rank == 0:  # the first that is asked
            sent.append(name)
            path = nodes.root / f"changed-{len(sent)}"
            path.write_bytes(file.read())
            flip(path)
            file.close()
            file = path.open("rb")
        return file, size

    monkeypatch.setattr(SharedFiles, "_open_file", changed)
    back = nodes.resume([0, 1, 2])
    assert len(sent) == 2 and [one.step for one in back] == [1, 1, 1]
    assert back[2].codes.count("checkpoint.holder_damaged") == 2
    assert nodes.file(2, 1, 0, 2).read_bytes() == nodes.file(0, 1, 0, 2).read_bytes()


def test_damage_on_the_only_holder_takes_the_step_before_on_all(nodes: Nodes) -> None:
    nodes.save([1, 2])
    flip(nodes.file(1, 2, 1, 2))
    back = nodes.resume([0, 1], reads=lambda rank: rank == 0)
    assert [one.step for one in back] == [1, 1]
    assert any(n.startswith("step-00000002 is skipped: 'shard-00001-of") for n in back[0].notes), back[0]
    assert not nodes.file(0, 2, 1, 2).exists(), "wrong bytes never get the file's name"


def test_damage_of_the_state_takes_the_step_before(nodes: Nodes) -> None:
    nodes.save([1, 2])
    flip(nodes.run(0).checkpoint(2) / "state.json")
    assert [one.step for one in nodes.resume([0, 1])] == [1, 1]


def test_old_ones_go_on_all_nodes_or_on_none(nodes: Nodes) -> None:
    nodes.save([1, 2], keep=2)
    with being_read(nodes.run(1).checkpoint(1)):
        nodes.save([3], keep=2)
    assert {node: [p.name[-1] for p in nodes.run(node).checkpoints.glob("step-*")] for node in (0, 1)}
    for node in (0, 1):
        assert sorted(p.name for p in nodes.run(node).checkpoints.glob("step-*")) == [
            f"step-0000000{step}" for step in (1, 2, 3)
        ], "an export of node 1 reads it"
    nodes.save([4], keep=2)
    for node in (0, 1):
        assert names(nodes.run(node).checkpoints) == ["latest", "step-00000003", "step-00000004"]


def test_what_a_crash_left_of_a_removal_goes_with_the_next_save(nodes: Nodes) -> None:
    nodes.save([1, 2])
    os.rename(nodes.run(0).checkpoint(1), nodes.run(0).checkpoints / ".trash-step-00000001-ab")
    survey = Survey({node: parts_in(nodes.run(node).checkpoints) for node in (0, 1)})
    assert [one.name for one in survey.whole] == ["step-00000002"]
    nodes.save([3])
    for node in (0, 1):
        assert names(nodes.run(node).checkpoints) == ["latest", "step-00000002", "step-00000003"]


@pytest.mark.parametrize(
    ("failing", "point"),
    [
        *((0, point) for point in ("files_written", "staging_synced", "old_aside")),
        *((1, point) for point in ("files_written", "staging_synced", "renamed")),
    ],
)
def test_a_save_that_fails_on_one_node_leaves_the_former_on_all(
    failing: int, point: str, nodes: Nodes
) -> None:
    nodes.save([1])
    before = {node: (nodes.run(node).checkpoint(1) / "manifest.json").read_bytes() for node in (0, 1)}

    def work(rank: ThreadRank) -> None:
        def crash(name: str) -> None:
            if rank.rank == failing and name == point:
                raise OSError(5, "no")

        saver = Checkpointer(nodes.run(rank.rank), rank, disks=Disks((0, 1)), crash=crash, grain=SMALL)
        saver.save(1, sample_shards(9), {"train": {"step": 1}}, FILES)  # in the place of the first

    answers = on_ranks(2, work)
    assert {error.diagnostics[0].code for error in answers} == {"checkpoint.io"}
    assert {n: (nodes.run(n).checkpoint(1) / "manifest.json").read_bytes() for n in (0, 1)} == before
    assert names(nodes.run(0).checkpoints) == names(nodes.run(1).checkpoints) == ["latest", "step-00000001"]


def test_one_nodes_folder_says_what_lies_on_the_others_and_copies_merge(nodes: Nodes) -> None:
    nodes.save([1], 3)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(nodes.run(0).checkpoint(1))
    (found,) = caught.value.diagnostics
    assert found.code == "checkpoint.incomplete" and "lie on other nodes" in found.what
    assert found.found == "2 of 6 files are missing: the shards of ranks 1 to 2"
    assert "rsync -a NODE:" in found.hint
    for node in (1, 2):
        shutil.copytree(nodes.run(node).checkpoint(1), nodes.run(0).checkpoint(1), dirs_exist_ok=True)
    assert find_checkpoint("latest", nodes.run(0)) == nodes.run(0).checkpoint(1)


def test_the_server_gives_only_what_it_shall_to_who_has_the_key(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"bytes")
    asked: list[str] = []

    def opened(digest: str, name: str) -> Any:
        asked.append(name)
        if name != "given":
            raise KeyError(name)
        return (tmp_path / name).open("rb"), 5

    key = key_of(SECRET, "token")
    server = FileServer("127.0.0.1", key, opened)
    try:
        with requested_file(server.place, key, "d", "given") as (size, pieces):
            assert (size, b"".join(pieces)) == (5, b"bytes")
        for wrong in (key_of(SECRET, "other"), key_of(b"other", "token")):
            with pytest.raises(RefusedError), requested_file(server.place, wrong, "d", "given"):
                pass
        assert asked == ["given"], "without the key nothing is opened"
        with pytest.raises(RefusedError), requested_file(server.place, key, "d", "../given"):
            pass
        with socket.create_connection(server.place) as line:  # a stranger's request, and rubbish
            line.sendall(b"GET / HTTP/1.0\r\n\r\n" * 99)
            line.settimeout(20)
            assert b"bytes" not in line.recv(4096)
    finally:
        server.close()
    with pytest.raises(OSError), requested_file(server.place, key, "d", "given"):
        pass


def test_bytes_that_a_stranger_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given").write_bytes(b"bytes")
    own, key = file_server.sign_pair, key_of(SECRET, "token")
    server = FileServer("127.0.0.1", key, lambda digest, name: ((tmp_path / name).open("rb"), 5))

    def signed(*given: bytes) -> Any:
        made = own(*given)
        if threading.current_thread() is not threading.main_thread():  # what was signed is not what comes
            made.update(b"other")
        return made

    monkeypatch.setattr(file_server, "sign_pair", signed)
    try:
        with (
            pytest.raises(RefusedError, match="not signed"),
            requested_file(server.place, key, "d", "given") as got,
        ):
            list(got[1])
    finally:
        server.close()


def test_a_newer_manifest_ends_the_start(nodes: Nodes) -> None:
    nodes.save([1, 2])
    for node in (0, 1):
        path = nodes.run(node).checkpoint(2) / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    assert {e.diagnostics[0].code for e in nodes.resume([0, 1])} == {"checkpoint.newer"}
