"""What the system refuses is said once, with what is lost; a folder that is deleted, moved or replaced is
known.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from paceline.checkpoint.format.durable_files import os_error
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.files import refusal_of
from paceline.core.rundir import RunDir
from paceline.launch.claim_run_dir import claim
from paceline.runlog.events import Finished, Notice, read_events
from paceline.runlog.log import RunLog
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result
from paceline.training.errors import diagnose
from paceline.training.reporting.observers import RunDirWatch

EVENT = Finished("completed", 1, 1.0)


def fill_up(file: Path) -> tuple[int, int]:
    """The descriptor of an open file as on a full disk; returns it and the true one. A real ENOSPC, for any
    user.
    """
    (fd,) = (int(n) for n in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{n}").resolve() == file)
    kept, full = os.dup(fd), os.open("/dev/full", os.O_RDWR)
    os.dup2(full, fd)
    os.close(full)
    return fd, kept


def make_room(fd: int, kept: int) -> None:
    os.dup2(kept, fd)
    os.close(kept)


def opened(tmp_path: Path, rank: int = 0, *, leads: bool = True) -> tuple[RunLog, list[Diagnostic], RunDir]:
    said: list[Diagnostic] = []
    run = RunDir.at(tmp_path / "run")
    return RunLog(run, rank, warn=said.append, leads=leads), said, run


def test_a_full_disk_is_said_once_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    log, said, run = opened(tmp_path)
    kept = [fill_up(file) for file in (run.events(0), run.rank_log(0))]
    for _ in range(5):
        log.write(EVENT)
    assert [one.code for one in said] == ["runlog.lost"]
    assert (
        "the disk is full" in said[0].what
        and "lost" in said[0].what
        and said[0].where.startswith(str(run.root))
    )
    for descriptors in kept:
        make_room(*descriptors)
    log.write(EVENT)
    lost = log.lost()
    assert lost is not None and "5 events and 5 lines" in lost.what
    log.close()
    events = [record.event for record in read_events(run.events(0))]
    assert (
        isinstance(events[0], Notice)
        and events[0].diagnostic.what.startswith("5 events")
        and events[1] == EVENT
    )
    assert (
        run.rank_log(0).read_text().count("\n") == 1 and len(run.training_log.read_text().splitlines()) == 6
    )
    assert len(said) == 1


def test_where_nothing_is_lost_nothing_is_said(tmp_path: Path) -> None:
    log, said, _ = opened(tmp_path)
    log.write(EVENT)
    log.close()
    assert said == [] and log.lost() is None


def test_a_full_disk_is_told_by_the_first_rank_of_a_node(tmp_path: Path) -> None:
    log, said, run = opened(tmp_path, 1, leads=False)
    kept = fill_up(run.events(1))
    log.write(EVENT)
    assert said == [] and log.lost() is not None
    make_room(*kept)
    log.close()


@pytest.mark.parametrize("folder", ["events", "logs"])
def test_a_log_that_is_deleted_begins_again_and_that_is_said(tmp_path: Path, folder: str) -> None:
    log, said, run = opened(tmp_path, 1, leads=False)
    log.write(EVENT)
    shutil.rmtree(run.root / folder)
    log.write(EVENT)
    log.write(EVENT)
    log.close()
    assert [one.code for one in said] == ["runlog.lost"] and "deleted" in said[0].what
    assert len(read_events(run.events(1))) == (2 if folder == "events" else 3)
    assert len(run.rank_log(1).read_text().splitlines()) == (2 if folder == "logs" else 3)


def test_a_folder_that_is_gone_is_not_made_again_by_a_log(tmp_path: Path) -> None:
    log, said, run = opened(tmp_path)
    shutil.rmtree(run.root)
    log.write(EVENT)
    log.close()
    assert len(said) == 1 and not run.root.exists()


def test_the_folder_of_a_run_is_known_by_more_than_its_name(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    for harm, words in (
        (shutil.rmtree, "deleted"),
        (lambda p: p.rename(tmp_path / "away"), str(tmp_path / "away")),
    ):
        for again in (False, True):
            place = RunDirWatch(run)
            assert place.check() is None
            harm(run.root)
            if again:
                run.root.mkdir()
            with pytest.raises(PacelineError) as caught:
                place.check()
            place.close()
            (found,) = caught.value.diagnostics
            assert found.code == "run.folder_gone" and words in found.render()
            shutil.rmtree(tmp_path / "away", ignore_errors=True)
            run.root.mkdir(exist_ok=True)


def test_a_link_to_where_the_folder_was_moved_is_the_same_folder(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    place = RunDirWatch(run)
    run.root.rename(tmp_path / "large-disk")
    run.root.symlink_to(tmp_path / "large-disk")
    assert place.check() is None
    place.close()


def test_a_checkpoint_that_is_taken_away_is_said_once(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.checkpoint(3).mkdir(parents=True)
    place = RunDirWatch(run)
    place.expects(str(run.checkpoint(3)))
    assert place.check() is None
    shutil.rmtree(run.checkpoint(3))
    gone = place.check()
    assert gone is not None and gone.code == "run.checkpoint_gone" and place.check() is None
    place.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
        (errno.EFBIG, "too_large"),
        (errno.EMFILE, "too_many_files"),
        (errno.EIO, "broken"),
        (errno.ESTALE, "gone"),
    ],
)
def test_no_refusal_of_the_system_is_an_exception_without_a_name(
    tmp_path: Path, number: int, kind: str
) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "x"))
    found = refusal_of(error, tmp_path / "x")
    assert found is not None and found.kind == kind
    finding = diagnose(error, 3)
    assert (
        finding.code == "training.system_refused"
        and found.reason in finding.what
        and str(tmp_path) in finding.what
    )


def test_inodes_that_are_used_up_are_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    none_left = os.statvfs_result((*real[:7], 0, *real[8:]))  # f_favail
    monkeypatch.setattr(os, "statvfs", lambda path: none_left)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "x" / "y"))
    assert "inodes" in diagnose(error, 0).what
    assert "inodes" in os_error(error, tmp_path).diagnostics[0].what


def test_a_connection_s_error_is_not_a_disk_s() -> None:
    assert refusal_of(ConnectionResetError(errno.ECONNRESET, "reset")) is None


def test_a_log_that_is_rotated_goes_on_under_its_name(tmp_path: Path) -> None:
    log, said, run = opened(tmp_path, 0)
    log.message("before")
    path = run.training_log
    path.rename(path.with_suffix(".log.1"))
    log.message("after")
    path.write_text("")  # copied and truncated
    log.message("later")
    log.close()
    assert "later" in path.read_text() and "before" in path.with_suffix(".log.1").read_text()
    assert said == [] and log.lost() is None


def test_a_file_name_in_no_encoding_is_written_as_it_is(tmp_path: Path) -> None:
    """As under ``LC_ALL=C PYTHONUTF8=0``, where Python has the bytes of ``größe.yaml`` as surrogates."""
    run, name = RunDir.at(tmp_path / "run"), b"gr\xc3\xb6\xc3\x9fe.yaml".decode("ascii", "surrogateescape")
    claim(run, plan={"file": name}, config_file=None, overwrite=False, resume=False)
    write_result(run, "completed", 0, {"file": name}, redact=Redactor.of({}))
    for path in (run.plan_json, run.result_json):
        assert json.loads(path.read_text(encoding="utf-8"))["file"] == name
