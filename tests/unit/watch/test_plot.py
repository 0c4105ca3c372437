"""The picture of a run: whatever state the run is in."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.runlog.events import (
    Answers,
    CheckpointSaved,
    Error,
    Eval,
    Event,
    EventLog,
    Finished,
    RunStarted,
    Step,
)
from paceline.runlog.history import load_history
from paceline.watch.figure import Curve, running_mean
from paceline.watch.plot import main, plot_run

PNG = b"\x89PNG\r\n\x1a\n"


def step(number: int, loss: float | None = None, memory: int = 1 << 30) -> Step:
    noise = random.Random(number).gauss(0, 0.1)
    value = 5 * math.exp(-number / 40) + 0.2 + noise * 0.3 if loss is None else loss
    return Step(
        number,
        number / 100,
        value,
        lr=1e-3,
        tokens_per_second=9000 * (1 + noise / 3),
        mfu=0.6 + noise / 10,
        memory_bytes=memory,
    )


def write(run: RunDir, events: list[Event], rank: int = 0) -> None:
    clock = iter(range(100, 10_000_000))
    with EventLog(run.events(rank), rank, clock=lambda: float(next(clock))) as log:
        for event in events:
            log.write(event)


def story(last: int = 200) -> list[Event]:
    events: list[Event] = [RunStarted("d", 2, total_steps=200, description="llama 1.2M, ddp, bf16")]
    for number in range(1, last + 1):
        events.append(step(number, memory=int(1.1e9) + number * 100_000))
        if number % 40 == 0:
            share = 1 - math.exp(-number / 60)
            events.append(
                Eval(
                    number,
                    {
                        "eval_loss": 5.2 * math.exp(-number / 40) + 0.3,
                        "eval_token_accuracy": share,
                        "eval_exact_match": share**2,
                    },
                )
            )
            events.append(CheckpointSaved(number, "p", 0.1, 10))
    return events


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


STORIES: dict[str, list[Event]] = {
    "finished": [*story(), Finished("completed", 200, 100.0)],
    "running": story(90),
    "just_started": [RunStarted("d", 1)],
    "failed": [*story(90), Error(1, Diagnostic("a.b", "it broke at $x_1$ \x1b[31m"))],
    "nan": [RunStarted("d", 1), step(1), step(2, math.nan), step(3, math.inf)],
    "one_step": [RunStarted("d", 1, total_steps=1), step(1), Finished("completed", 1, 1.0)],
    "zero_loss": [RunStarted("d", 1), step(1, 0.0), step(2, 0.0)],
    "answers": [
        RunStarted("d", 1),
        Answers(0, [{"correct": False}]),
        step(1),
        Answers(1, [{"correct": True}, {"correct": False}]),
        Answers(2, []),
    ],
    "resumed": [
        *story(90),
        RunStarted("d", 2, "step-80", 80, 200),
        *[step(n) for n in range(81, 100)],
        Finished("stopped", 99, 1.0),
    ],
}


@pytest.mark.parametrize("kind", STORIES)
def test_every_state_gives_a_picture(run: RunDir, kind: str) -> None:
    write(run, STORIES[kind])
    path = plot_run(run)
    assert path == run.plot_png and path.read_bytes()[:8] == PNG and path.stat().st_size > 10_000
    assert [p.name for p in run.root.iterdir() if p.name.startswith(".")] == []


def test_the_picture_shows_all_four_panels(run: RunDir) -> None:
    from paceline.watch import plot

    write(run, STORIES["finished"])
    figure = plot.draw_history(load_history(run), "run")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "Loss",
        "Accuracy on held-out data",
        "Tokens per second",
        "Peak memory of the worst rank, GiB",
    ]
    labels = [{text.get_text() for text in ax.get_legend().get_texts()} for ax in figure.axes[:3]]
    assert labels[0] == {"training", "held out", "checkpoint"} and labels[1] == {
        "exact match 93.0%",
        "token accuracy 96.4%",
    }
    assert all(len(ax.lines) >= 1 for ax in figure.axes)


@pytest.mark.full
def test_no_title_runs_into_the_words_at_its_right(run: RunDir) -> None:
    """In every panel of every story, as drawn; a CPU's utilisation has the longest words."""
    from paceline.watch import plot

    for name, story in STORIES.items():
        steps = [replace(e, mfu=None, of_product=0.23) if isinstance(e, Step) else e for e in story]
        write(run, steps)
        figure = plot.draw_history(load_history(run), name)
        figure.canvas.draw()
        drawn = figure.canvas.get_renderer()
        for ax in figure.axes:
            left, right = (place.get_window_extent(drawn) for place in (ax._left_title, ax._right_title))
            apart = left.x1 + 6 < right.x0 or not ax.get_title(loc="right")
            assert apart, (name, ax.get_title(loc="left"), ax.get_title(loc="right"))


def test_preferences_show_pairs_ranked_right_and_calibration(run: RunDir) -> None:
    from paceline.watch import plot

    steps = [replace(step(n), extras={"accuracy": 1 - 1 / n, "margin": n / 9}) for n in range(1, 9)]
    held_out = Eval(
        8, {"eval_accuracy": 0.75, "eval_calibration_error": 0.125, "eval_margin": 3.0, "eval_loss": 0.4}
    )
    write(run, [RunStarted("d", 1), *steps, held_out])
    panel = plot.draw_history(load_history(run), "run").axes[1]
    assert panel.get_title(loc="left") == "Accuracy"
    labels = {text.get_text() for text in panel.get_legend().get_texts()}
    assert labels == {"training pairs", "accuracy 75.0%", "calibration error 12.5%"}


def test_a_reward_run_shows_how_far_its_confidence_is_from_what_happens(run: RunDir) -> None:
    from paceline.watch import plot

    steps = [replace(step(n), extras={"accuracy": 1 - 1 / n, "margin": n / 9}) for n in range(1, 9)]
    bins = {
        "0/share": 0.25,
        "0/confidence": 0.52,
        "0/correct": 0.4,
        "9/share": 0.75,
        "9/confidence": 0.97,
        "9/correct": 1.0,
    }
    early = Eval(4, {"eval_accuracy": 0.5}, bins={"1/share": 1.0, "1/confidence": 0.56, "1/correct": 0.5})
    late = Eval(8, {"eval_accuracy": 0.85, "eval_calibration_error": 0.05, "eval_margin": 3.0}, bins=bins)
    write(run, [RunStarted("d", 1), *steps, early, late])
    figure = plot.draw_history(load_history(run), "run")
    panels = {ax.get_title(loc="left"): ax for ax in figure.axes}
    drawn = panels["Calibration on held-out pairs"]
    assert drawn.collections[-1].get_offsets().tolist() == [
        [0.52, 0.4],
        [0.97, 1.0],
    ], "the bins of the last evaluation"
    assert drawn.get_title(loc="right") == "step 8, error 5.0%" and drawn.get_xlabel() == "confidence"
    assert len(figure.axes) == 6 and panels["Margin, chosen over rejected"].get_xlabel() == "step"
    assert plot_run(run).read_bytes().startswith(b"\x89PNG")


def test_a_rollout_run_shows_rewards_and_where_the_time_goes(run: RunDir) -> None:
    from paceline.watch import plot

    times = {"time/generate": 0.2, "time/train": 0.5, "time/rollout": 0.3}
    told = {"reward": 0.5, "reward/exact_match": 0.4, "reward/length": 0.9, "entropy": 0.3, **times}
    write(run, [RunStarted("d", 1), *[replace(step(n), extras=told) for n in range(1, 9)]])
    panels = {ax.get_title(loc="left"): ax for ax in plot.draw_history(load_history(run), "run").axes}
    labels = [t.get_text() for t in panels["Reward of sampled answers"].get_legend().get_texts()]
    assert labels == ["reward", "exact_match", "length"]
    assert [t.get_text() for t in panels["Seconds per step"].get_legend().get_texts()] == [
        "generate",
        "train",
    ]


def test_a_run_without_events_is_named(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="plot.no_events"):
        plot_run(run)
    assert main([str(run.root)]) == 2 and "nothing to plot yet" in capsys.readouterr().err
    assert not run.root.exists()


def test_another_file(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, STORIES["running"])
    assert main([str(run.root), "--to", str(tmp_path / "deep" / "x.png")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "deep" / "x.png")
    assert not run.plot_png.exists()
    (tmp_path / "file").write_text("x")
    assert main([str(run.root), "--to", str(tmp_path / "file" / "x.png")]) == 2
    assert "plot.write" in capsys.readouterr().err


def test_history_of_a_resumed_run_counts_each_step_once(run: RunDir) -> None:
    write(run, STORIES["resumed"])
    history = load_history(run)
    assert list(history.steps) == list(range(1, 100))
    assert (history.restarts, history.outcome, history.last_step) == ([80], "stopped", 99)
    assert max(history.evals) == 80
    pause = 1.0  # between the attempts
    assert history.seconds == len(STORIES["resumed"]) - 1 - pause


def test_history_takes_the_worst_rank_and_every_rank_s_errors(run: RunDir) -> None:
    write(run, [RunStarted("d", 2), step(1, memory=10), step(2, memory=10)])
    write(
        run,
        [step(1, memory=30), step(2, memory=5), step(3, memory=99), Error(1, Diagnostic("a.b", "x"))],
        rank=1,
    )
    history = load_history(run)
    assert (history.peak_memory, history.num_ranks, history.outcome) == ({1: 30, 2: 10}, 2, "failed")
    assert [e.rank for e in history.errors] == [1]


def test_running_mean_is_the_mean_and_keeps_the_ends() -> None:
    assert running_mean([]) == []
    assert running_mean([1.0, 2.0, 6.0]) == [1.0, 3.0, 6.0]
    line = [float(i) for i in range(200)]
    assert running_mean(line) == pytest.approx(line)


def test_curves_leave_out_what_is_no_number() -> None:
    curve = Curve.of({3: 1.0, 1: 2.0, 2: math.nan, 4: math.inf})
    assert (curve.x, curve.y, bool(curve), bool(Curve.of({}))) == ([1, 3], [2.0, 1.0], True, False)


@pytest.mark.parametrize(
    ("shares", "limits"),
    [
        ([0.55, 0.58], (0.505, 0.625)),  # what moved fills half of the height
        ([0.0, 0.02], (-0.01, 0.11)),
        ([0.99, math.nan], (0.89, 1.01)),
        ([0.0, 1.0], (-0.1, 1.1)),
        ([], (-0.1, 1.1)),
    ],
)
def test_the_axis_of_shares_fits_them(shares: list[float], limits: tuple[float, float]) -> None:
    from paceline.watch.figure import share_limits

    assert share_limits(shares) == pytest.approx(limits)


def test_token_accuracy_is_called_so_and_fills_its_axis(run: RunDir) -> None:
    from paceline.watch import plot

    held_out = [Eval(n, {"eval_token_accuracy": 0.5 + n / 100, "eval_loss": 1.0}) for n in (2, 4, 8)]
    write(run, [RunStarted("d", 1), *(step(n) for n in range(1, 9)), *held_out])
    panel = plot.draw_history(load_history(run), "run").axes[1]
    assert panel.get_title(loc="left") == "Token accuracy on held-out data"
    low, high = panel.get_ylim()
    assert 0.4 < low < 0.52 and 0.58 < high < 0.7
