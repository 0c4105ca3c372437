"""Callbacks on a rank: what they get, and that one that raises, hangs or asks to stop is named and harms no
other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.runlog.events import CheckpointSaved, Eval, Event, Finished, Notice, RunStarted, Step
from paceline.runlog.redact import Redactor
from paceline.training.reporting import callbacks as room
from paceline.training.reporting.callbacks import Callbacks, UserCallback, check_callback
from paceline.training.reporting.observers import Observers

HOLD = threading.Event()


class Watch:
    """Hears everything and asks to stop after step ``until``."""

    made: list[Watch] = []

    def __init__(self, until: int = 99, rank: int = -1) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.until, self.rank, self.should_stop = until, rank, False
        self.made.append(self)

    def on_step_end(self, event: Step) -> None:
        self.heard.append(("step", event.step))
        self.should_stop = event.step >= self.until

    def on_evaluate(self, event: Eval) -> None:
        self.heard.append(("evaluate", event.metrics["eval_loss"]))

    def on_save(self, event: CheckpointSaved) -> None:
        self.heard.append(("save", event.path))

    def on_train_end(self, event: Finished) -> None:
        self.heard.append(("end", event.outcome))


class Writes:
    def on_step_end(self, event: Step) -> None:
        event.losses["nll"] = 0.0  # type: ignore[index]


class Hangs:
    def on_step_end(self, event: Step) -> None:
        HOLD.wait(60)


class Unmade:
    def __init__(self, needed: int) -> None:
        raise OSError("no file")

    def on_save(self, event: Event) -> None: ...


def each(event: Event) -> None:
    raise KeyError(type(event).__name__)


NOT_ONE = 3


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("my_callbacks")
    for part in (Watch, Writes, Hangs, Unmade, each):
        setattr(module, part.__name__, part)
    module.NOT_ONE = NOT_ONE  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_callbacks", module)
    monkeypatch.setattr(Watch, "made", [])
    HOLD.clear()
    yield
    HOLD.set()  # before the next test clears it again, what hung has ended
    for thread in threading.enumerate():
        if thread.name.startswith("callback-"):
            thread.join(30)


def parts(*names: str, **options: Any) -> list[UserCallback]:
    return [UserCallback(f"my_callbacks:{name}", options) for name in names]


def test_each_gets_the_events_of_its_rank_in_order_and_can_change_none() -> None:
    found: list[Diagnostic] = []
    step = Step(1, 0.0, 2.0, losses={"nll": 2.0})
    called = Callbacks(parts("Watch", "Writes", "each"), 3, found.append)
    for event in (RunStarted("d", 4), step, Eval(1, {"eval_loss": 2.5}), CheckpointSaved(1, "/c", 0.0, 1)):
        called.hear(event)
    called.hear(Finished("completed", 1, 1.0))
    called.close()
    [watch] = Watch.made
    assert watch.rank == 3
    assert watch.heard == [("step", 1), ("evaluate", 2.5), ("save", "/c"), ("end", "completed")]
    assert step.losses == {"nll": 2.0}
    assert [(d.code, d.where) for d in found] == [("callback.failed", "training.callbacks, rank 3")] * 2
    assert "TypeError" in found[0].found and found[1].found == "KeyError: 'Step'", "each is called once only"


def test_one_that_hangs_is_named_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(room, "WAIT_SHARE", 0.0)
    monkeypatch.setattr(room, "END_SECONDS", 0.05)
    monkeypatch.setattr(room, "MOST_WAITING", 3)
    found: list[Diagnostic] = []
    called = Callbacks(parts("Hangs"), 0, found.append)
    for number in range(1, 7):
        called.hear(Step(number, 0.0, 1.0))
    called.close()
    assert [d.code for d in found] == ["callback.slow", "callback.failed", "callback.slow"]
    assert "no longer waits" in found[0].what and "3 events" in found[1].found


def test_one_that_asks_to_stop_does_so_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WAIT_SECONDS", 60.0)
    found: list[Diagnostic] = []
    called = Callbacks(parts("Watch", until=2), 0, found.append)
    for number in range(1, 4):
        called.hear(Step(number, 0.0, 1.0))
        assert called.should_stop() == (number >= 2)
    called.close()
    assert [d.code for d in found] == ["callback.stops"]


def test_one_that_cannot_be_made_ends_the_run_and_what_is_none_is_refused() -> None:
    with pytest.raises(PacelineError, match="OSError: no file"):
        Callbacks(parts("Unmade", needed=1), 0, lambda finding: None)
    for part, words in (
        (UserCallback("my_callbacks:NOT_ONE"), "is no callback"),
        (UserCallback("my_callbacks:Unmade"), "missing a required argument: 'needed'"),
        (UserCallback("my_callbacks:Watch", {"most": 1}), "unexpected keyword argument 'most'"),
        (UserCallback("my_callbacks:each", {"most": 1}), "takes no options"),
        (UserCallback("pathlib:Path"), "is no callback"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_callback(part)


def test_the_observers_call_what_the_config_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {name_or_path: m}\ndata: {train: t.json}\ntraining:\n  report_to: none\n"
        "  callbacks: [{name: 'my_callbacks:Watch', options: {until: 1}}]\n"
    )
    run = RunDir.at(tmp_path)
    config = load_config(str(file)).config
    monkeypatch.setattr(room, "WAIT_SECONDS", 60.0)
    made = Observers(run, 1, config, {}, Redactor(), leads=False)  # type: ignore[arg-type]
    made.begin(RunStarted("d", 2, total_steps=3))
    assert not made.should_stop()
    made.hear(Step(1, 0.0, 1.0))
    assert made.should_stop()
    made.hear(Notice(room.codes.CALLBACK_STOPS(name="w")))
    made.finish(Finished("early_stopped", 1, 0.1), "")
    assert Watch.made[0].heard == [("step", 1), ("end", "early_stopped")]
    assert not [t for t in threading.enumerate() if t.name.startswith("callback-")]
