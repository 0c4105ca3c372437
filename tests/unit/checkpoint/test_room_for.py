"""Many files of a checkpoint, and few that may be open."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.checkpoint.format.verify_files import open_regular
from paceline.checkpoint.load.reader import CheckpointReader, raise_open_files_limit
from paceline.core.errors import CheckpointError


@pytest.fixture
def few_files() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = len(os.listdir("/proc/self/fd")) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_lifted_as_far_as_it_may_be(few_files: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raise_open_files_limit(1000)
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert now >= 1000 or now == hard
    raise_open_files_limit(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == now, "never lowered"


def test_a_checkpoint_opens_where_the_limit_was_low(few_files: int, save: Callable[..., Path]) -> None:
    with CheckpointReader(save(1)) as reader:
        assert reader.step == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_what_the_machine_cannot_open_is_not_called_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shard.safetensors"
    file.write_bytes(b"x")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("paceline.checkpoint.format.verify_files.os.open", refuse)
    with pytest.raises(CheckpointError) as caught:
        open_regular(file)
    assert caught.value.diagnostics[0].code == "checkpoint.unreadable"
    assert "ulimit -n" in caught.value.diagnostics[0].hint or number != errno.EMFILE


def test_a_link_is_still_damage(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(CheckpointError) as caught:
        open_regular(tmp_path / "b")
    assert caught.value.diagnostics[0].code == "checkpoint.damaged"
