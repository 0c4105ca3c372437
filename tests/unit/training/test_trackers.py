"""Trackers: what is written, what is said when one is missing or fails."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.rundir import RunDir
from paceline.training.trackers import Guarded, open_trackers


class FakeRun:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.calls.append(("log", values, step))

    def finish(self) -> None:
        self.calls.append(("finish",))


@pytest.fixture
def wandb_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    fake = types.ModuleType("wandb")

    def init(**kwargs: Any) -> FakeRun:
        calls.append(("init", kwargs))
        return FakeRun(calls)

    fake.init = init  # type: ignore[attr-defined]
    fake.Settings = lambda **kwargs: kwargs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return calls


def opened(run: RunDir, report_to: Any, **kwargs: Any) -> tuple[list[Any], list[Diagnostic]]:
    return open_trackers(
        report_to, run, name="n", config={"a": 1}, wandb_key_present=kwargs.pop("key", False), **kwargs
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def points(run: RunDir) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run.tensorboard), purge_orphaned_data=True)
    reader.Reload()
    return [(p.step, round(p.value, 4)) for p in reader.Scalars("train/loss")]


def test_tensorboard_holds_the_numbers_and_a_resumed_run_overwrites_its_future(run: RunDir) -> None:
    for start, steps in ((0, (1, 2, 3)), (1, (2, 3))):
        (tracker,), notes = opened(run, ["tensorboard"], start_step=start)
        assert notes == []
        for step in steps:
            tracker.log(step, {"train/loss": step + start})
        tracker.close()
        tracker.close()
    assert points(run) == [(1, 1.0), (2, 3.0), (3, 4.0)]


@pytest.mark.parametrize("key", [False, True])
def test_wandb_is_offline_without_a_key(run: RunDir, wandb_calls: list[Any], key: bool) -> None:
    (tracker,), notes = opened(run, ["wandb"], key=key)
    tracker.log(3, {"train/loss": 1.0})
    tracker.close()
    (_, kwargs), *rest = wandb_calls
    assert (
        kwargs["mode"] == (None if key else "offline")
        and kwargs["dir"] == str(run.wandb)
        and kwargs["config"] == {"a": 1}
    )
    assert rest == [("log", {"train/loss": 1.0}, 3), ("finish",)]
    assert [n.code for n in notes] == ([] if key else ["tracker.offline"])


@pytest.mark.parametrize("report_to", [[], ["none"], "none", ()])
def test_none_is_none(run: RunDir, report_to: Any) -> None:
    assert opened(run, report_to) == ([], [])
    assert not run.root.exists()


def test_all_is_every_one_that_is_installed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tracker,), (note,) = opened(run, ["all"])
    tracker.close()
    assert (tracker.name, note.code, note.severity) == ("tensorboard", "tracker.not_installed", Severity.NOTE)


def test_a_missing_package_is_named_with_the_extra(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    trackers, (note,) = opened(run, ["wandb"])
    assert trackers == [] and note.severity is Severity.WARNING and "paceline[wandb]" in note.hint


def test_an_unknown_name_is_said(run: RunDir) -> None:
    trackers, (note,) = opened(run, ["mlflow"])
    assert trackers == [] and note.code == "tracker.unknown" and note.found == "mlflow"


def test_one_that_cannot_start_is_said(
    run: RunDir, wandb_calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**kwargs: Any) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    trackers, (note,) = opened(run, ["wandb"], key=True)
    assert trackers == [] and note.code == "tracker.failed" and "no network" in note.found


def test_one_that_fails_later_is_reported_once_and_left_alone() -> None:
    class Failing:
        calls = 0

        def log(self, step: int, values: Mapping[str, float]) -> None:
            self.calls += 1
            raise OSError("disk full")

        def close(self) -> None:
            raise AssertionError("closed after it failed")

    heard: list[Diagnostic] = []
    failing = Failing()
    tracker = Guarded("x", failing, heard.append)
    for number in range(3):
        tracker.log(number, {})
    tracker.close()
    assert failing.calls == 1 and [d.code for d in heard] == ["tracker.failed"]
