"""A training from Python: what it returns, what it raises, and what it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import instruction_rows

import paceline
from paceline.api.callbacks import Listener
from paceline.api.html import loss_curve
from paceline.core.diagnostics import Diagnostic
from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, Event, EventLog, RunStarted, Step

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_LEDGER", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


ON_EACH_RANK = """
class OnEachRank:
    def __init__(self, rank):
        self.heard = [f"rank {{rank}}:"]
    def on_step_end(self, event):
        self.heard.append(str(event.step))
    def on_train_end(self, event):
        open({file!r}, "w").write(" ".join([*self.heard, event.outcome]))
"""


class InThisProcess:
    """A callback that no other process can import."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_step_end(self, event: Event) -> None:
        self.heard.append(type(event).__name__)

    on_evaluate = on_save = on_train_end = on_step_end


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path
) -> Iterator[tuple[dict[str, Any], paceline.Run, list[Event]]]:
    """One run of six steps on rows given as objects, what it was given, and what on_event heard."""
    folder = tmp_path_factory.mktemp("library")
    config = {
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 320,
                "max_position_embeddings": 256,
            },
            "tokenizer": tokenizer_dir,
        },
        "data": {"max_length": 96, "cache_dir": folder / "cache"},
        "training": {
            "output_dir": folder / "run",
            "max_steps": 6,
            "learning_rate": 2e-3,
            "use_cpu": True,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "report_to": "none",
        },
    }
    (folder / "paceline_test_callbacks.py").write_text(ON_EACH_RANK.format(file=str(folder / "rank")))
    heard, callback = list[Event](), InThisProcess()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(folder / "cache"))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.setenv("PACELINE_LEDGER", "off")
        patch.setenv("OMP_NUM_THREADS", "1")
        run = paceline.train(
            config,
            dataset=instruction_rows(40),
            eval_dataset=instruction_rows(8, seed=3),
            on_event=heard.append,
            callbacks=[callback, "paceline_test_callbacks:OnEachRank"],
            quiet=True,
        )
    assert callback.heard == ["Step"] * 3 + ["Eval"] + ["Step"] * 3 + ["Eval", "CheckpointSaved", "Finished"]
    assert (folder / "rank").read_text() == "rank 0: 1 2 3 4 5 6 completed"
    yield config, run, heard


def test_a_training_returns_its_run(trained: tuple[dict[str, Any], paceline.Run, list[Event]]) -> None:
    config, run, heard = trained
    assert run.outcome == "completed" and run.path == config["training"]["output_dir"]
    steps = run.arrays()
    assert steps["step"].tolist() == [1, 2, 3, 4, 5, 6] and steps["loss"][-1] < steps["loss"][0]
    assert steps["loss"].tolist() == [event.loss for event in heard if isinstance(event, Step)]
    assert [type(event).__name__ for event in heard].count("Eval") == 2
    assert run.plan.algorithm == "sft" and run.result["step"] == 6
    assert [one.step for one in run.checkpoints()] == [6] == [one.step for one in paceline.checkpoints(run)]
    assert run.checkpoints()[0].latest and run.checkpoints()[0].problem is None
    assert "data.format" in {one.code for one in run.diagnostics}


def test_the_history_is_arrays_or_a_frame(
    trained: tuple[dict[str, Any], paceline.Run, list[Event]],
) -> None:
    run = paceline.Run.open(trained[1])
    evals = run.arrays("evals")
    assert evals["step"].tolist() == [3, 6] and np.isfinite(evals["eval_loss"]).all()
    frame = run.frame()
    assert frame.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["loss"].tolist() == run.arrays()["loss"].tolist()
    with pytest.raises(paceline.ConfigError, match="api.argument"):
        run.arrays("stpes")


def test_a_run_shows_itself(trained: tuple[dict[str, Any], paceline.Run, list[Event]]) -> None:
    run = trained[1]
    page = run._repr_html_()
    assert "completed" in page and "<svg" in page and "completed after 6 steps" in repr(run)


def test_a_second_start_in_the_same_folder_harms_nothing(
    trained: tuple[dict[str, Any], paceline.Run, list[Event]],
) -> None:
    config, run, _ = trained
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    with pytest.raises(paceline.ConfigError) as caught:
        paceline.train(config, dataset=instruction_rows(40), eval_dataset=instruction_rows(8, seed=3))
    assert [one.code for one in caught.value.diagnostics] == ["run.exists"]
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_config_that_is_wrong_names_the_argument(tiny: Tiny) -> None:
    config = tiny(learning_rat=1e-3)
    with pytest.raises(paceline.ConfigError) as caught:
        paceline.load_config(config, {"training.max_steps": "many"})
    where = {one.code: one.where for one in caught.value.diagnostics}
    assert where == {
        "config.unknown_key": "argument training.learning_rat",
        "config.type": "argument training.max_steps",
    }
    with pytest.raises(paceline.ConfigError, match="api.argument"):
        paceline.load_config(7)  # type: ignore[arg-type]
    with pytest.raises(paceline.ConfigError, match=r"config\['model'\]\['name_or_path'\]"):
        paceline.load_config({"model": {"name_or_path": object()}})


def test_a_file_an_override_and_what_was_loaded_are_the_same_config(tmp_path: Path, tiny: Tiny) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(tiny()))
    loaded = paceline.load_config(file, {"training.learning_rate": 3e-4})
    assert loaded.config.training.learning_rate == 3e-4
    again = paceline.load_config(loaded, {"training.seed": 11})
    assert (again.config.training.learning_rate, again.config.training.seed) == (3e-4, 11)
    assert again.config.training.experiment_name == "mine" and "argument  training.seed" in str(again)
    emptied = paceline.load_config(tiny(eval_steps=5), {"training.eval_steps": None})
    assert emptied.config.training.eval_steps is None, "None is a value"
    given = paceline.load_config(tiny(), {"training.learning_rate": 3e-4, "training.experiment_name": "mine"})
    assert given.config.digest() == loaded.config.digest()


def test_a_plan_is_made_without_torch_and_prints_itself(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launch.preflight.child_checks.run_child", lambda job: ({}, ""))
    planned = paceline.plan(tiny(), overrides={"training.use_cpu": True}, nproc=2, imports=False)
    assert planned.plan.world_size == 2 and "optimizer" in str(planned)
    assert "<table>" in planned._repr_html_() and planned.to_json()["world_size"] == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "there are no rows"),
        ({"prompt": "a"}, "one mapping"),
        (["a"], r"dataset\[0\]"),
        ([{"prompt": "a"}, {"prompt": object()}], r"dataset\[1\]\['prompt'\]"),
    ],
)
def test_rows_that_are_none_are_refused(tiny: Tiny, tmp_path: Path, rows: Any, words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        with pytest.raises(paceline.ConfigError, match=words):
            paceline.train(tiny(), dataset=rows)
    assert not (tmp_path / "run").exists() and not list((tmp_path / "cache/rows").iterdir())


def test_rows_of_pandas_and_of_datasets_are_the_same_file(tmp_path: Path) -> None:
    import datasets
    import pandas as pd

    from paceline.api.arguments import written

    rows = instruction_rows(5)
    files = {
        written(given, "dataset", tmp_path)
        for given in (rows, iter(rows), pd.DataFrame(rows), datasets.Dataset.from_list(rows))
    }
    (one,) = files
    assert [json.loads(line) for line in one.read_text().splitlines()] == rows


def test_there_is_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(paceline.ConfigError, match="api.no_run"):
        paceline.Run.open(tmp_path)


def test_a_listener_that_raises_is_named_and_one_that_is_slow_is_not_waited_for(tmp_path: Path) -> None:
    import threading

    log, hold = EventLog(tmp_path / "e.jsonl", 0), threading.Event()

    def raises(event: Event) -> None:
        raise KeyError("mine")

    def sleeps(event: Event) -> None:
        hold.wait(60)

    found: list[Diagnostic | None] = []
    for hear in (raises, sleeps):
        with Listener(log.path, hear, late_seconds=0.3) as listener:
            log.write(RunStarted("d", 1))
        found.append(listener.problem)
    hold.set()
    log.close()
    assert [one.code if one else "" for one in found] == ["api.listener"] * 2
    assert "KeyError: 'mine'" in found[0].found and "sleeps" in found[1].what  # type: ignore[union-attr]


def test_a_curve_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path)
    with EventLog(run.events(0), 0) as log:
        log.write(RunStarted("d", 1))
        for step, loss in enumerate((3.0, float("nan"), 1.0), 1):
            log.write(Step(step, 0.0, loss))
        log.write(Eval(3, {"eval_loss": 1.5}))
    from paceline.runlog.history import load_history

    curve = loss_curve(load_history(run))
    assert "loss from 3 to 1" in curve and "nan" not in curve
