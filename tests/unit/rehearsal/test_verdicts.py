"""The verdicts of a rehearsal: planted faults in what a tiny run and a run of 1 B parameters measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.rehearsal.attempt import Attempt
from paceline.rehearsal.life import ExportResult, Life
from paceline.rehearsal.rehearse import Rehearsal
from paceline.rehearsal.verdict import Line, RealRun, failed, judge, summary
from paceline.runlog.events import CheckpointSaved, Error, Eval, Event, Notice, Record, RunStarted, Step

GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """A run: seconds of its step and its start, bytes of its checkpoint and its peak, the disk's speed."""

    step: float
    start: float
    saved: int
    peak: float
    total: int
    speed: float
    device: int


TINY = Size(0.3, 6.0, 30 << 20, 600e6, 2_000, 700e6, 12 * GIB)
BILLION = Size(8.0, 45.0, 15 * GIB, 60e9, 20_000, 2e9, 80 * GIB)
SIZES = {"tiny": TINY, "1 B": BILLION}


def loss_of(step: int) -> float:
    return 5.0 - 0.1 * step


def attempt(
    size: Size,
    steps: range,
    code: int,
    *,
    wall: Callable[[int], float] = lambda step: 0.0,
    memory: Callable[[int], float] = lambda step: 0.0,
    loss: Callable[[int], float] = loss_of,
    data: float = 0.0,
    evaluation: float | None = 1.0,
    speed: float = 1.0,
    saves: bool = True,
    error: str = "",
    notice: str = "",
    **facts: Any,
) -> Attempt:
    """Return a start of these steps, with a save and an evaluation after step 4."""
    now = size.start
    records = [(now, RunStarted("plan", 2, total_steps=size.total))]
    events: list[tuple[float, Event]] = [*records]
    for step in steps:
        seconds = size.step + wall(step) + data
        now += seconds
        peak = int(size.peak + memory(step))
        events.append(
            (
                now,
                Step(
                    step, step / 100, loss(step), step_seconds=size.step, memory_bytes=peak, data_seconds=data
                ),
            )
        )
        if step == 4:
            if evaluation is not None:
                now += evaluation * size.step
                events.append((now, Eval(4, {"eval_loss": 1.0}, evaluation * size.step)))
            if saves:
                took = size.saved / (speed * size.speed)
                now += took
                events.append((now, CheckpointSaved(4, "checkpoints/step-00000004", took, size.saved)))
    if notice:
        events.append((now, Notice(Diagnostic("train.callback", notice, severity=Severity.WARNING))))
    if error:
        events.append((now, Error(0, Diagnostic("algorithms.reward", error))))
    acted = now if code != ExitCode.OK and not error else None
    values = {"acted": acted, "code": int(code), "ended": now + 1.0, **facts}
    return Attempt(began=0.0, records=tuple(Record(t, 0, e) for t, e in events), **values)


def healthy(size: Size) -> Life:
    return Life(
        attempt(size, range(1, 9), ExitCode.PEER_FAILED),
        attempt(size, range(5, 9), ExitCode.STOPPED),
        attempt(size, range(5, 9), ExitCode.STOPPED, loss=lambda step: loss_of(step) + 1e-7),
        1,
        ExportResult(20.0, size.saved // 3),
    )


def real_run(size: Size, **facts: Any) -> RealRun:
    base = RealRun(200, 500, 2, size.peak, size.device, 40 * size.saved, 2e-6)
    return replace(base, **facts)


Fault = Callable[[Size], tuple[Life, RealRun]]


def first(size: Size, **how: Any) -> Life:
    return replace(
        healthy(size), first=attempt(size, range(1, 9), how.pop("code", ExitCode.PEER_FAILED), **how)
    )


#: fault → (stage, verdict, code, what happened)
FAULTS: dict[str, tuple[str, str, str, Fault]] = {
    "a disk too slow": (
        "save",
        "warning",
        "rehearse.save_slow",
        lambda s: (first(s, speed=(s.saved / s.speed) / (120 * s.step)), real_run(s)),
    ),
    "a save that does not fit": (
        "save",
        "failed",
        "rehearse.disk_full",
        lambda s: (healthy(s), real_run(s, kept=None, free_bytes=3 * s.saved)),
    ),
    "no room for the new one beside those kept": (
        "save",
        "failed",
        "rehearse.disk_full",
        lambda s: (healthy(s), real_run(s, kept=2, free_bytes=int(2.5 * s.saved))),
    ),
    "a save that never came": (
        "save",
        "failed",
        "rehearse.stage",
        lambda s: (Life(attempt(s, range(1, 5), 1, saves=False, error="no space")), real_run(s)),
    ),
    "a step that grows": (
        "steps",
        "failed",
        "rehearse.step_grows",
        lambda s: (first(s, wall=lambda step: 0.1 * step * s.step), real_run(s)),
    ),
    "memory that grows": (
        "memory",
        "failed",
        "rehearse.memory_grows",
        lambda s: (first(s, memory=lambda step: 0.01 * step * s.peak), real_run(s)),
    ),
    "memory at its limit": (
        "memory",
        "warning",
        "rehearse.memory_full",
        lambda s: (healthy(s), real_run(s, device_bytes=int(s.peak * 1.02))),
    ),
    "more memory than planned": (
        "memory",
        "warning",
        "rehearse.memory_plan",
        lambda s: (healthy(s), real_run(s, planned_bytes=s.peak / 1.4)),
    ),
    "a loss that is not a number": (
        "steps",
        "failed",
        "rehearse.loss",
        lambda s: (first(s, loss=lambda step: math.nan if step > 2 else 5.0), real_run(s)),
    ),
    "rows that come late": (
        "data",
        "warning",
        "rehearse.data",
        lambda s: (first(s, data=0.5 * s.step), real_run(s)),
    ),
    "a callback that raises": (
        "warnings",
        "warning",
        "rehearse.warnings",
        lambda s: (first(s, notice="a callback raised"), real_run(s)),
    ),
    "an evaluation that breaks": (
        "evaluation",
        "failed",
        "rehearse.stage",
        lambda s: (
            Life(attempt(s, range(1, 5), 1, evaluation=None, saves=False, error="metric broke")),
            real_run(s),
        ),
    ),
    "evaluations that take the time": (
        "evaluation",
        "warning",
        "rehearse.eval",
        lambda s: (first(s, evaluation=100.0), real_run(s)),
    ),
    "a start that fails": (
        "start",
        "failed",
        "rehearse.stage",
        lambda s: (Life(attempt(s, range(0), 1, error="no rows")), real_run(s)),
    ),
    "a process that stays": (
        "kill",
        "failed",
        "rehearse.left",
        lambda s: (first(s, left=(4711,)), real_run(s)),
    ),
    "state outside the checkpoint": (
        "resume",
        "failed",
        "rehearse.parted",
        lambda s: (
            replace(
                healthy(s),
                resumed=attempt(s, range(5, 9), ExitCode.STOPPED, loss=lambda step: loss_of(step) + 1e-5),
            ),
            real_run(s),
        ),
    ),
    "a resume that fails": (
        "resume",
        "failed",
        "rehearse.stage",
        lambda s: (replace(healthy(s), resumed=attempt(s, range(0), 1, error="no such file")), real_run(s)),
    ),
    "a stop that loses": (
        "stop",
        "failed",
        "rehearse.stage",
        lambda s: (replace(healthy(s), resumed=attempt(s, range(5, 9), 137)), real_run(s)),
    ),
    "a stop too slow": (
        "stop",
        "warning",
        "rehearse.stop_slow",
        lambda s: (
            replace(healthy(s), resumed=attempt(s, range(5, 9), ExitCode.STOPPED, ended=1e5)),
            real_run(s),
        ),
    ),
    "a world that is refused": (
        "another world size",
        "warning",
        "rehearse.world",
        lambda s: (
            replace(healthy(s), other=attempt(s, range(0), ExitCode.CONFIG, output_end="the batch")),
            real_run(s),
        ),
    ),
    "losses that part in another world": (
        "another world size",
        "failed",
        "rehearse.parted",
        lambda s: (
            replace(healthy(s), other=attempt(s, range(5, 9), ExitCode.STOPPED, loss=lambda step: 4.0)),
            real_run(s),
        ),
    ),
    "an export that fails": (
        "export",
        "failed",
        "rehearse.export",
        lambda s: (replace(healthy(s), exported=ExportResult(3.0, 0, "exporter broke")), real_run(s)),
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_in_its_line_and_in_no_other(fault: str, size: str) -> None:
    stage, verdict, code, happened = FAULTS[fault]
    life, run = happened(SIZES[size])
    lines = judge(life, run)
    by_stage = {line.stage: line for line in lines}
    assert (by_stage[stage].verdict, by_stage[stage].finding and by_stage[stage].finding.code) == (
        verdict,
        code,
    )
    # Where a start breaks, all that it did not reach is missing too; else one fault is one finding
    if life.resumed is not None and life.resumed.steps:
        assert [line.stage for line in lines if line.finding] == [stage]
    assert failed(lines) is (verdict == "failed")


@pytest.mark.parametrize("size", SIZES)
def test_a_healthy_life_has_no_finding_and_is_extrapolated(size: str) -> None:
    facts = SIZES[size]
    lines = judge(healthy(facts), real_run(facts))
    assert {line.verdict for line in lines} == {"ok"}
    by_stage: dict[str, Line] = {line.stage: line for line in lines}
    assert by_stage["start"].numbers["seconds"] == pytest.approx(facts.start)
    assert by_stage["steps"].numbers["total_seconds"] == pytest.approx(facts.total * facts.step)
    assert by_stage["evaluation"].numbers["number"] == facts.total // 200
    assert by_stage["save"].numbers["needed_bytes"] == 3 * facts.saved
    assert by_stage["resume"].text.endswith("4 losses equal bit for bit")
    [whole, death] = summary(lines, real_run(facts))
    assert whole.startswith("the whole run: ") and "half an interval" in death
    [_, of_a_short_run] = summary(lines, real_run(facts, save_steps=10**9))
    assert " costs " in of_a_short_run and "d" not in of_a_short_run.split(" costs ")[1].split(" on ")[0]


def test_noise_of_steps_and_allocators_is_no_growth() -> None:
    noise = [0.0, 0.03, 0.01, 0.04, 0.02, 0.01, 0.03, 0.02]
    life = first(
        TINY,
        wall=lambda step: noise[step - 1],
        memory=lambda step: 5e7 * (1 - 0.3**step),  # settles
    )
    assert not [line for line in judge(life, real_run(TINY)) if line.finding]


def test_a_run_without_evaluations_and_saves_says_so() -> None:
    lines = {
        line.stage: line for line in judge(healthy(TINY), real_run(TINY, eval_steps=None, save_steps=None))
    }
    assert lines["evaluation"].verdict == "not tried" and lines["evaluation"].text == "the run has none"
    assert lines["save"].verdict == "ok" and "only when it is stopped or ends" in lines["save"].text


def test_a_short_run_may_end_before_the_kill_and_the_stop() -> None:
    life = Life(attempt(TINY, range(1, 9), ExitCode.OK), attempt(TINY, range(5, 9), ExitCode.OK))
    lines = {line.stage: line for line in judge(life, real_run(TINY))}
    assert "kill" not in lines and lines["stop"].verdict == "not tried"
    assert lines["another world size"].verdict == "not tried"


def test_the_report_is_text_and_json() -> None:
    life, run = FAULTS["a save that does not fit"][3](BILLION)
    lines = tuple(judge(life, run))
    rehearsal = Rehearsal("run.yaml: ddp on 2 ranks", 61.0, lines, tuple(summary(lines, run)))
    text = rehearsal.text()
    assert text.startswith("rehearsal of run.yaml: ddp on 2 ranks in 1m01s\nstage ")
    assert "error[rehearse.disk_full] the checkpoints that the run keeps need" in text and "3 fit" in text
    written = json.loads(json.dumps(rehearsal.to_json()))
    assert written["failed"] is True
    [finding] = [line["finding"] for line in written["lines"] if line["finding"]]
    assert finding["code"] == "rehearse.disk_full"
