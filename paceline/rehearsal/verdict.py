"""What the stages mean for the whole run: a line each, with a verdict and what it extrapolates to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.core.units import human_bytes, human_seconds
from paceline.rehearsal import codes
from paceline.rehearsal.attempt import Attempt
from paceline.rehearsal.life import Life, goes_on
from paceline.runlog.events import Notice

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "not tried"
WARM_UP = 2  # first steps, which compile, allocate and fill caches
DATA_SHARE = 0.10  # of a step, waiting for rows
EVAL_SHARE = 0.25  # of the run
SAVE_SHARE = 0.10
MEMORY_ABOVE_PLAN = 1.10
MEMORY_FULL = 0.95  # of the device
GROWN = 1.25  # of the last third of the steps over the first, where all rise
RISING = 0.8  # share of pairs of steps in which the later one is larger (Kendall's tau of 0.6)
MEMORY_STEP = 0.002  # of the peak: less than this a step is noise of allocators


@dataclass(frozen=True)
class RealRun:
    """What is known of the run that is rehearsed.

    - ``eval_steps``, ``save_steps``: steps between them, None: never
    - ``kept``: checkpoints that stay on the disk, None: all
    - ``planned_bytes``: of the fullest rank, None: unknown; ``device_bytes``: of its device
    - ``free_bytes``: on the disk of the run directory
    - ``tolerance``: of a loss in another world; ``resume_tolerance``: in the same one
    - ``notice``: seconds that a scheduler gives after SIGTERM
    """

    eval_steps: int | None
    save_steps: int | None
    kept: int | None
    planned_bytes: float | None
    device_bytes: int
    free_bytes: int
    tolerance: float
    resume_tolerance: float = 0.0
    notice: float = 30.0


@dataclass(frozen=True)
class Line:
    """A stage's verdict. ``numbers``: what it measured and extrapolates, in bytes, seconds and steps."""

    stage: str
    verdict: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)
    finding: Diagnostic | None = None


def judge(life: Life, run: RealRun) -> list[Line]:
    """Return the lines of a life, in its order."""
    first = life.first
    lines = [_start(first)]
    if len(first.steps) >= 1:
        lines += [_steps(first), _memory(first, run), _data(first)]
        lines += [_evaluation(first, run), _save(first, run), *_warnings(first)]
    if (killed := _kill(first)) is not None:
        lines.append(killed)
    if life.resumed is not None:
        lines.append(_went_on("resume", first, life.resumed, run.resume_tolerance))
        lines.append(_stop(life.resumed, run))
    elif first.saves and not goes_on(first):
        lines.append(Line("resume", SKIPPED, "the run has no step after its checkpoint"))
    if life.other is not None:
        lines.append(_world(life, run))
    elif life.resumed is not None:
        lines.append(Line("another world size", SKIPPED, "there is no smaller world of these ranks"))
    if life.exported is not None:
        lines.append(_exported(life))
    return lines


def failed(lines: Sequence[Line]) -> bool:
    return any(line.verdict == FAILED for line in lines)


def _start(first: Attempt) -> Line:
    seconds = first.start_seconds
    if seconds is None:
        return _line("start", codes.REHEARSE_STAGE(found=first.why(), stage="start"), "no step was trained")
    return Line(
        "start",
        OK,
        f"{human_seconds(seconds)} to the first step; every restart costs as much",
        {"seconds": seconds},
    )


def _settled(first: Attempt) -> list[float]:
    return first.step_seconds[WARM_UP - 1 :] or first.step_seconds or [first.steps[0].step_seconds]


def step_seconds(first: Attempt) -> float:
    """Return the median seconds of a step, with the wait for its rows and with callbacks."""
    return statistics.median(_settled(first))


def _steps(first: Attempt) -> Line:
    steps, total = first.steps, first.total_steps or 0
    bad = [step.step for step in steps if not math.isfinite(step.loss)]
    if bad:
        return _line(
            "steps",
            codes.REHEARSE_LOSS(step=bad[0]),
            f"the loss of step {bad[0]} is {steps[bad[0] - 1].loss}",
        )
    skipped = [step.step for step in steps if step.skipped]
    if len(skipped) == len(steps):
        return _line(
            "steps", codes.REHEARSE_SKIPPED(found=str(steps[0].skipped)), "no step has changed the weights"
        )
    seconds = step_seconds(first)
    settled = _settled(first)
    text = f"{_short(seconds)} each: {total:,} steps take {human_seconds(total * seconds)}"
    numbers = {"step_seconds": seconds, "total_steps": float(total), "total_seconds": total * seconds}
    if (ratio := _rise(settled)) >= GROWN:
        grows = codes.REHEARSE_STEP_GROWS(ratio=f"{ratio:.2f}", steps=len(settled))
        return _line("steps", grows, text, numbers)
    if not first.acted and first.code != ExitCode.OK:
        last = steps[-1].step
        return _line(
            "steps", codes.REHEARSE_STAGE(found=first.why(), stage=f"step {last + 1}"), text, numbers
        )
    return Line("steps", OK, text, numbers)


def _memory(first: Attempt, run: RealRun) -> Line:
    peaks = [float(step.memory_bytes) for step in first.steps if step.memory_bytes]
    if not peaks:
        return Line("memory", SKIPPED, "this device says nothing of its memory")
    peak, total = peaks[-1], first.total_steps or len(peaks)
    share = peak / run.device_bytes if run.device_bytes else 0.0
    planned = f", planned {human_bytes(run.planned_bytes)}" if run.planned_bytes else ""
    text = f"peak {human_bytes(peak)}{planned}, {share:.0%} of {human_bytes(run.device_bytes)}"
    numbers = {
        "peak_bytes": peak,
        "planned_bytes": run.planned_bytes or 0.0,
        "device_bytes": float(run.device_bytes),
    }
    growth = _steady_growth(peaks[WARM_UP:])
    if growth > MEMORY_STEP * peak:
        end = peak + growth * (total - len(peaks))
        full = (
            ""
            if end <= run.device_bytes
            else f"; full at step {len(peaks) + int((run.device_bytes - peak) / growth):,}"
        )
        grown = codes.REHEARSE_MEMORY_GROWS(step=human_bytes(growth), full=full)
        return _line("memory", grown, text, {**numbers, "bytes_a_step": growth, "end_bytes": end})
    if share > MEMORY_FULL:
        return _line("memory", codes.REHEARSE_MEMORY_FULL(share=f"{share:.0%}"), text, numbers)
    if run.planned_bytes and peak > MEMORY_ABOVE_PLAN * run.planned_bytes:
        above = codes.REHEARSE_MEMORY_PLAN(ratio=f"{peak / run.planned_bytes:.2f}")
        return _line("memory", above, text, numbers)
    return Line("memory", OK, text, numbers)


def _data(first: Attempt) -> Line:
    waits = [step.data_seconds for step in first.steps[WARM_UP:] if step.data_seconds is not None]
    share = statistics.median(waits) / max(step_seconds(first), 1e-9) if waits else 0.0
    text, numbers = f"{share:.1%} of a step waits for rows", {"share": share}
    if share > DATA_SHARE:
        return _line("data", codes.REHEARSE_DATA(share=f"{share:.0%}"), text, numbers)
    return Line("data", OK, text, numbers)


def _evaluation(first: Attempt, run: RealRun) -> Line:
    if run.eval_steps is None:
        return Line("evaluation", SKIPPED, "the run has none")
    if not first.evals:
        missing = codes.REHEARSE_STAGE(found=first.why(), stage="evaluation")
        return _line("evaluation", missing, "it did not come to its end")
    seconds = first.evals[-1].seconds
    number = max(1, (first.total_steps or 0) // run.eval_steps)
    share = seconds / (seconds + run.eval_steps * step_seconds(first))
    text = f"{_short(seconds)}, {number:,} times: {human_seconds(number * seconds)}, {share:.1%} of the time"
    numbers = {"seconds": seconds, "number": float(number), "share": share}
    if share > EVAL_SHARE:
        rarer = _rarer(seconds, EVAL_SHARE, first)
        return _line("evaluation", codes.REHEARSE_EVAL(share=f"{share:.0%}", steps=rarer), text, numbers)
    return Line("evaluation", OK, text, numbers)


def _save(first: Attempt, run: RealRun) -> Line:
    if not first.saves:
        return _line(
            "save", codes.REHEARSE_STAGE(found=first.why(), stage="save"), "no checkpoint was published"
        )
    last = first.saves[-1]
    seconds = last.seconds if last.waited is None else last.waited
    speed = f", {human_bytes(last.bytes / last.seconds)}/s" if last.seconds > 0 else ""
    text = f"{human_bytes(last.bytes)} in {_short(last.seconds)}{speed}"
    numbers = {"seconds": last.seconds, "waited": seconds, "bytes": float(last.bytes)}
    if run.save_steps is None:
        return Line("save", OK, f"{text}; the run saves only when it is stopped or ends", numbers)
    number = max(1, (first.total_steps or 0) // run.save_steps)
    kept = number if run.kept is None else min(number, run.kept + 1)  # the new one before the oldest goes
    share, needed = seconds / (seconds + run.save_steps * step_seconds(first)), kept * last.bytes
    text += f"; {number:,} saves, {share:.1%} of the time; {kept:,} kept, {human_bytes(needed)}"
    numbers |= {
        "number": float(number),
        "share": share,
        "needed_bytes": float(needed),
        "free_bytes": float(run.free_bytes),
    }
    if needed > run.free_bytes:
        full = codes.REHEARSE_DISK_FULL(
            found=f"{human_bytes(run.free_bytes)} free",
            needed=human_bytes(needed),
            fit=run.free_bytes // max(1, last.bytes),
        )
        return _line("save", full, text, numbers)
    if share > SAVE_SHARE:
        slow = codes.REHEARSE_SAVE_SLOW(share=f"{share:.0%}", steps=_rarer(seconds, SAVE_SHARE, first))
        return _line("save", slow, text, numbers)
    return Line("save", OK, text, numbers)


def _warnings(first: Attempt) -> Iterator[Line]:
    """Yield what the ranks have warned of while they trained, such as a callback that raises."""
    notices = {event.diagnostic.code: event.diagnostic for event in first.events(Notice)}
    warnings = {code: one for code, one in notices.items() if one.severity is Severity.WARNING}
    if warnings:
        text = "\n".join(warning.render() for warning in warnings.values())
        yield _line("warnings", codes.REHEARSE_WARNINGS(found=text), ", ".join(warnings))


def _kill(first: Attempt) -> Line | None:
    """Judge the end of the killed start; None where none of its ranks was killed."""
    if first.acted is None:
        return None
    seconds = first.end_seconds or 0.0
    if first.left:
        over = codes.REHEARSE_LEFT(found=", ".join(map(str, first.left)), number=len(first.left))
        return _line("kill", over, f"ended after {_short(seconds)}", {"seconds": seconds})
    if first.code == ExitCode.OK:
        return Line("kill", SKIPPED, "the run was complete before a rank could be killed")
    cause = first.error.what if first.error else f"exit code {first.code}"
    return Line("kill", OK, f"all ranks had ended after {_short(seconds)}: {cause}", {"seconds": seconds})


def _went_on(stage: str, first: Attempt, again: Attempt, tolerance: float) -> Line:
    """Compare the steps that both starts have trained."""
    if not again.steps:
        return _line(stage, codes.REHEARSE_STAGE(found=again.why(), stage=stage), "it trained no step")
    losses = {step.step: step.loss for step in first.steps if math.isfinite(step.loss)}
    parted = [(abs(s.loss - losses[s.step]), s.step) for s in again.steps if s.step in losses]
    numbers = {"start_seconds": again.start_seconds or 0.0, "compared_steps": float(len(parted))}
    begun = f"step {again.steps[0].step} after {human_seconds(again.start_seconds or 0.0)}"
    if not parted:
        return Line(stage, OK, f"{begun}; no step was trained twice, so no loss could be compared", numbers)
    worst, step = max(parted)
    numbers["loss_difference"] = worst
    scale = max(1.0, abs(losses[step]))
    if worst > tolerance * scale or math.isnan(worst):
        apart = codes.REHEARSE_PARTED(stage=stage, step=step, difference=f"{worst:.1e}")
        return _line(stage, apart, f"{begun}; the losses part", numbers)
    same = "bit for bit" if worst == 0 else f"to {worst:.0e}"
    return Line(stage, OK, f"{begun}; {len(parted)} losses equal {same}", numbers)


def _stop(resumed: Attempt, run: RealRun) -> Line:
    if resumed.acted is None or resumed.code == ExitCode.OK:
        if resumed.code == ExitCode.OK:
            return Line("stop", SKIPPED, "the run was complete before it could be stopped")
        return _line("stop", codes.REHEARSE_STAGE(found=resumed.why(), stage="resume"), "it failed before")
    seconds = resumed.end_seconds or 0.0
    if resumed.code != ExitCode.STOPPED or resumed.left:
        return _line(
            "stop", codes.REHEARSE_STAGE(found=resumed.why(), stage="stop"), f"exit code {resumed.code}"
        )
    text, numbers = f"saved and ended {_short(seconds)} after SIGTERM", {"seconds": seconds}
    if seconds > run.notice:
        late = codes.REHEARSE_STOP_SLOW(seconds=f"{seconds:.0f}", notice=f"{run.notice:.0f}")
        return _line("stop", late, text, numbers)
    return Line("stop", OK, text, numbers)


def _world(life: Life, run: RealRun) -> Line:
    stage = "another world size"
    assert life.other is not None
    other = life.other
    if other.code == ExitCode.CONFIG and not other.steps:
        refused = codes.REHEARSE_WORLD(found=other.output_end, ranks=life.world_size)
        return _line(stage, refused, f"{_ranks(life)}: refused")
    line = _went_on(stage, life.first, other, run.tolerance)
    return Line(stage, line.verdict, f"{_ranks(life)}: {line.text}", line.numbers, line.finding)


def _ranks(life: Life) -> str:
    return f"{life.world_size} rank{'s' * (life.world_size > 1)}"


def _exported(life: Life) -> Line:
    exported = life.exported
    assert exported is not None
    if exported.problem:
        return _line("export", codes.REHEARSE_EXPORT(found=exported.problem), "there is no folder")
    text = f"{human_bytes(exported.bytes)} in {human_seconds(exported.seconds)}, opened again"
    return Line("export", OK, text, {"seconds": exported.seconds, "bytes": float(exported.bytes)})


def _line(stage: str, finding: Diagnostic, text: str, numbers: dict[str, float] | None = None) -> Line:
    verdict = FAILED if finding.severity is Severity.ERROR else WARNING
    return Line(stage, verdict, text, numbers or {}, finding)


def _rarer(seconds: float, share: float, first: Attempt) -> int:
    """Return the steps between events of ``seconds`` with which they take half of ``share``."""
    return math.ceil(seconds * (2 / share - 1) / max(step_seconds(first), 1e-9))


def _rise(values: Sequence[float]) -> float:
    """Return the median of the last third over that of the first; 0.0 unless nearly every later value is
    larger than every earlier one (Mann and Kendall's test, at least 4 values).
    """
    pairs = [later > earlier for i, earlier in enumerate(values) for later in values[i + 1 :]]
    if len(values) < 4 or sum(pairs) < RISING * len(pairs):
        return 0.0
    third = len(values) // 3
    return statistics.median(values[-third:]) / max(statistics.median(values[:third]), 1e-9)


def _steady_growth(peaks: Sequence[float]) -> float:
    """Return the bytes that a peak grows by a step, 0 where its growth ebbs away as allocators settle."""
    steps = [later - earlier for earlier, later in pairwise(peaks)]
    if len(steps) < 3 or sum(step > 0 for step in steps) < RISING * len(steps):
        return 0.0
    half = len(steps) // 2
    early, late = statistics.mean(steps[:half] or steps), statistics.mean(steps[half:])
    return late if late >= 0.5 * early else 0.0


def _short(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 60
        else human_seconds(seconds)
    )


def summary(lines: Sequence[Line], numbers: RealRun) -> Iterator[str]:
    """Yield what the whole run costs."""
    stages = {line.stage: line.numbers for line in lines}
    steps = stages.get("steps", {})
    if "total_seconds" not in steps:
        return
    evals = stages.get("evaluation", {})
    saves = stages.get("save", {})
    parts = {
        "steps": steps["total_seconds"],
        "evaluations": evals.get("number", 0.0) * evals.get("seconds", 0.0),
        "saves": saves.get("number", 0.0) * saves.get("waited", 0.0),
        "start": stages.get("start", {}).get("seconds", 0.0),
    }
    total = sum(parts.values())
    shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items() if seconds)
    yield f"the whole run: {human_seconds(total)} ({shares})"
    if numbers.save_steps is not None:
        between = min(numbers.save_steps, steps["total_steps"]) * steps["step_seconds"]
        lost = human_seconds(between / 2 + parts["start"])
        yield f"a rank that dies costs {lost} on average: half an interval of saves, and a start"
