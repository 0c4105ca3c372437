"""Trackers: what is written, what is said when one is missing, and that none of them touches the training."""

import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.config.registries.trackers import TRACKERS
from paceline.core.diagnostics import Diagnostic
from paceline.core.rundir import RunDir
from paceline.training.reporting import trackers as room
from paceline.training.reporting.tracker_backends import ADAPTERS, TrackedRun, Tracker
from paceline.training.reporting.trackers import Trackers, TrackerThread, open_trackers

KEYS = {"WANDB_API_KEY": "k" * 40, "SWANLAB_API_KEY": "k" * 40}


class StandIn:
    """A package of a tracker: every call is recorded with its thread, and then does ``act``."""

    def __init__(self, act: Callable[[str], None] = lambda call: None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.idents: set[int] = set()
        self._act = act

    def called(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            self.idents.add(threading.get_ident())
            self._act(name)
            return self.result()

        return call

    def result(self) -> Any:
        """What every call returns: a run, a client, an experiment or a writer."""
        made = types.SimpleNamespace(
            **{
                name: self.called(name)
                for name in (
                    *("log", "finish", "add_scalar", "close", "log_batch", "set_terminated", "create_run"),
                    *("get_experiment_by_name", "create_experiment"),
                )
            }
        )
        made.info, made.experiment_id = types.SimpleNamespace(run_id="1"), "2"
        return made

    def module(self, name: str) -> types.ModuleType:
        module = types.ModuleType(name)
        for attr in ("init", "log", "finish", "Settings", "SummaryWriter", "MlflowClient"):
            setattr(module, attr, self.called(attr))
        module.Metric = module.Param = lambda *given: given  # type: ignore[attr-defined]
        return module

    def named(self, *names: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for call, args, kwargs in self.calls if call in names]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, StandIn], StandIn]:
    def put(name: str, package: StandIn) -> StandIn:
        for module in {ADAPTERS[name].imports, *(("mlflow.entities",) if name == "mlflow" else ())}:
            monkeypatch.setitem(sys.modules, module, package.module(module))
        return package

    return put


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What stand-ins that hang wait for: set at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "END_SECONDS", 0.2)


def opened(run: RunDir, *names: str, heard: list[Diagnostic] | None = None, **more: Any) -> Trackers:
    environ = more.pop("environ", KEYS) | {"HOME": str(run.root.parent)}
    tracked = TrackedRun(run, "n", {"a": {"b": 1}, "c": None}, start_step=more.pop("start_step", 0))
    said = [] if heard is None else heard
    return open_trackers(names, tracked, project=None, environ=environ, report=said.append, **more)


def points(run: RunDir) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run.tensorboard), purge_orphaned_data=True)
    reader.Reload()
    return [(p.step, round(p.value, 4)) for p in reader.Scalars("train/loss")]


def test_tensorboard_holds_the_numbers_and_a_resumed_run_overwrites_its_future(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "END_SECONDS", 60.0)
    heard: list[Diagnostic] = []
    for start, steps in ((0, (1, 2, 3)), (1, (2, 3))):
        trackers = opened(run, "tensorboard", heard=heard, start_step=start)
        for step in steps:
            trackers.log(step, {"train/loss": step + start})
        trackers.close()
        trackers.close()
    assert points(run) == [(1, 1.0), (2, 3.0), (3, 4.0)] and heard == [] and trackers.abandoned == ()


POINT = {"tensorboard": "add_scalar", "mlflow": "log_batch"}


@pytest.mark.parametrize("name", list(TRACKERS))
def test_each_gets_every_point_in_order_in_its_own_thread(
    run: RunDir, install: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "END_SECONDS", 60.0)
    package = install(name, StandIn())
    trackers = opened(run, name)
    for step in range(1, 6):
        trackers.log(step, {"train/loss": 0.5})
    trackers.close()
    sent = [one for one in package.named(POINT.get(name, "log")) if "params" not in one[1]]
    assert len(sent) == 5 and all("0.5" in repr(one) for one in sent)
    assert [repr(one).count(str(step)) > 0 for step, one in enumerate(sent, 1)] == [True] * 5
    assert package.named("finish", "close", "set_terminated") and package.calls[-1][0] != "log"
    assert threading.get_ident() not in package.idents and len(package.idents) == 1


@pytest.mark.parametrize("name", list(TRACKERS))
def test_one_that_hangs_holds_nobody_up(
    run: RunDir, install: Any, name: str, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SLOW_SECONDS", -1.0)
    install(name, StandIn(lambda call: [release.wait()].clear()))
    heard: list[Diagnostic] = []
    trackers = opened(run, name, heard=heard)
    for step in range(1, 1500):  # returns though no call of the package does
        trackers.log(step, {"train/loss": 0.5})
    assert not release.is_set()
    trackers.close()
    assert trackers.abandoned == (name,) and not release.is_set()
    assert [d.code for d in heard] == ["tracker.slow", "tracker.dropped", "tracker.unsent"]
    assert "1499 points" in heard[-1].what and "499 were dropped, 1000 were not sent" in heard[-1].found


@pytest.mark.parametrize("name", list(TRACKERS))
@pytest.mark.parametrize("when", ["init", "log"])
def test_one_that_fails_or_is_offline_is_said_once(run: RunDir, install: Any, name: str, when: str) -> None:
    starts = ("init", "SummaryWriter", "MlflowClient")

    def fail(call: str) -> None:
        if (call in starts) == (when == "init") and call != "Settings":
            raise ConnectionError("no route to host")

    package = install(name, StandIn(fail))
    heard: list[Diagnostic] = []
    trackers = opened(run, name, heard=heard)
    trackers.log(1, {"train/loss": 0.5})
    trackers._threads[0].join(time.monotonic() + 60)  # it ends by itself
    for step in range(2, 5):
        trackers.log(step, {"train/loss": 0.5})
    before = len(package.calls)
    trackers.close()
    assert [d.code for d in heard] == ["tracker.failed"] and "no route to host" in heard[0].found
    assert len(package.calls) == before and trackers.abandoned == (name,)


def test_a_slow_one_gets_what_there_is_time_for_and_the_rest_is_counted(run: RunDir) -> None:
    go, closed = threading.Semaphore(0), threading.Event()

    class Slow:
        def log(self, step: int, values: Mapping[str, float]) -> None:
            go.acquire(timeout=30)

        def close(self) -> None:
            closed.set()

    heard: list[Diagnostic] = []
    one = TrackerThread("slow", Slow)
    trackers = Trackers([one], heard.append)
    for step in range(1, 11):
        trackers.log(step, {})
    go.release(3)
    one.end(0.0)  # its time to send is over while the fourth point is on its way
    go.release(7)
    one.join(time.monotonic() + 60)
    trackers.close()
    assert closed.is_set() and not one.is_alive and one.unsent >= 6
    (said,) = heard
    assert said.code == "tracker.unsent" and f"did not get {one.unsent} points" in said.what


def test_a_quick_one_is_not_disturbed_by_one_that_hangs(run: RunDir, release: threading.Event) -> None:
    got: list[int] = []

    class Quick:
        def log(self, step: int, values: Mapping[str, float]) -> None:
            got.append(step)

        def close(self) -> None:
            pass

    def hangs() -> Tracker:
        release.wait()
        return Quick()

    heard: list[Diagnostic] = []
    trackers = Trackers([TrackerThread("hangs", hangs), TrackerThread("quick", Quick)], heard.append)
    for step in range(20):
        trackers.log(step, {})
    trackers.close()
    assert got == list(range(20)) and trackers.abandoned == ("hangs",)
    assert [d.what.split()[0] for d in heard] == ["hangs"]


@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_without_a_key_it_records_offline(run: RunDir, install: Any, name: str, key: bool) -> None:
    package = install(name, StandIn())
    heard: list[Diagnostic] = []
    opened(run, name, heard=heard, environ=dict(KEYS) if key else {}).close()
    ((_, made),) = package.named("init")
    assert made["mode"] == (None if key else "offline") and made["config"] == {"a": {"b": 1}, "c": None}
    assert str(run.root / name) in made.values() and made["project"] == "paceline"
    assert [n.code for n in heard] == ([] if key else ["tracker.offline"])


@pytest.mark.parametrize(
    ("file", "text", "name", "is_there"),
    [
        (".netrc", "machine api.wandb.ai login user password 0123", "wandb", True),
        (".netrc", "machine github.com login user password 0123", "wandb", False),
        (".netrc", "machine", "wandb", False),
        (".swanlab/.netrc", "machine api.swanlab.cn login user password 0123", "swanlab", True),
    ],
)
def test_a_login_counts_as_a_key(
    run: RunDir, install: Any, file: str, text: str, name: str, is_there: bool
) -> None:
    path = run.root.parent / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    package = install(name, StandIn())
    opened(run, name, environ={}).close()
    assert package.named("init")[0][1]["mode"] == (None if is_there else "offline")


def test_a_mode_of_its_own_variable_stays(run: RunDir, install: Any) -> None:
    package, heard = install("wandb", StandIn()), []  # type: ignore[var-annotated]
    opened(run, "wandb", heard=heard, environ={"WANDB_MODE": "disabled"}).close()
    assert package.named("init")[0][1]["mode"] is None and heard == []


@pytest.mark.parametrize("name", [name for name, facts in TRACKERS.items() if facts.project])
def test_the_project_is_the_configs_else_the_variables(run: RunDir, install: Any, name: str) -> None:
    package = install(name, StandIn())
    variable = {**KEYS, TRACKERS[name].project: "theirs"}
    opened(run, name, environ=variable).close()
    tracked = TrackedRun(run, "n", {})
    environ = {**variable, "HOME": str(run.root.parent)}
    open_trackers([name], tracked, project="mine", environ=environ, report=lambda d: None).close()
    said = [repr(one) for one in package.named("init", "get_experiment_by_name")]
    assert len(said) == 2 and "'theirs'" in said[0] and "'mine'" in said[1]


def test_none_is_none_and_all_is_what_is_there(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, adapter in ADAPTERS.items():
        monkeypatch.setitem(sys.modules, adapter.imports, None)
        assert name in TRACKERS
    heard: list[Diagnostic] = []
    assert opened(run, heard=heard).names == opened(run, "none", heard=heard).names == ()
    assert opened(run, "all", heard=heard).names == () and heard == []
    monkeypatch.setitem(sys.modules, "swanlab", StandIn().module("swanlab"))
    trackers = opened(run, "all", heard=heard)
    trackers.close()
    assert trackers.abandoned == () and [d.code for d in heard] == []
    opened(run, "wandb", heard=heard)
    assert [d.code for d in heard] == ["tracker.not_installed"] and "paceline[wandb]" in heard[0].hint


def test_mlflow_gets_the_config_in_pieces_and_names_that_it_takes(run: RunDir, install: Any) -> None:
    package = install("mlflow", StandIn())
    many = {f"k{number}": number for number in range(150)} | {"é&": 1, "no": None}
    tracked = TrackedRun(run, "n", many)
    trackers = open_trackers(["mlflow"], tracked, project=None, environ={}, report=lambda d: None)
    trackers.log(1, {"reward/my:f": 1.0})
    trackers.close()
    params = [one[1]["params"] for one in package.named("log_batch") if "params" in one[1]]
    assert [len(one) for one in params] == [100, 51] and params[1][-1] == ("é_", "1")
    (metric,) = package.named("log_batch")[-1][1]["metrics"]
    assert metric[:2] == ("reward/my_f", 1.0) and metric[3] == 1
    assert package.named("MlflowClient")[0][1]["tracking_uri"] == f"sqlite:///{run.mlflow / 'mlflow.db'}"
