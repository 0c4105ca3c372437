"""Laws that no job may break: more memory never fits less, faster hardware is never slower; and limits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.core.errors import ConfigError
from paceline.plan.cost.coefficients import memory_coefficients, speed_coefficients
from paceline.plan.cost.memory.peak import worst_peak
from paceline.plan.cost.search import Candidate, SearchSpec, predicted, search
from paceline.plan.cost.step_time import speed_of
from paceline.plan.hardware.device_catalogue import cards, cluster_of
from paceline.plan.model.model_catalogue import known_models, model_shape
from paceline.plan.workload.step_spec import AdapterSize, Machine, StepSpec

SAMPLE = 12  # layouts of each job
SLACK = 1 + 1e-9


def job(seed: int) -> SearchSpec | None:
    """A random job; None where its rows cannot be divided."""
    draw = random.Random(seed)
    card = draw.choice(sorted(cards()))
    count = draw.choice((1, 2, 4, 8, 16, 64))
    shape = model_shape(draw.choice(sorted(known_models())))
    adapter = AdapterSize(shape.num_parameters // 100, draw.choice((2.0, 0.516)))
    try:
        return SearchSpec(
            shape,
            cluster_of(f"{count}x{card}"),
            draw.choice((512, 2048, 8192)),
            count * draw.choice((1, 2, 12)),
            adapter if draw.random() < 0.3 else None,
        )
    except ConfigError:
        return None


def layouts_of(seed: int) -> tuple[SearchSpec, list[Candidate]] | None:
    spec = job(seed)
    if spec is None:
        return None
    try:
        found = search(spec)
    except ConfigError:
        return None
    return spec, random.Random(seed).sample(found, min(SAMPLE, len(found)))


def seconds(work: StepSpec) -> float:
    return speed_of(work, speed_coefficients()).step


def held(work: StepSpec) -> float:
    return worst_peak(work, memory_coefficients())[1].total


def on(c: Candidate, change: Callable[[Machine], Machine]) -> StepSpec:
    return replace(c.work, machine=change(c.work.machine))


FASTER: dict[str, Callable[[Machine], Machine]] = {
    "matmul": lambda m: replace(m, flops=2 * m.flops, reached=2 * m.reached),
    "memory bandwidth": lambda m: replace(m, hbm=2 * m.hbm),
    "links in a node": lambda m: replace(m, inside=2 * m.inside),
    "links between nodes": lambda m: replace(m, outside=2 * m.outside),
    "host link": lambda m: replace(m, host=2 * m.host),
    "one node": lambda m: replace(m, outside=max(m.inside, m.outside), domain=10**6),
}


def violations(seed: int) -> list[str]:
    """What a job's layouts contradict, in words."""
    drawn = layouts_of(seed)
    if drawn is None:
        return []
    spec, found = drawn
    wrong = []
    for c in found:
        where = f"job {seed}, {c.strategy} {c.mesh}, micro-batch {c.work.micro_batch}, {c.work.recompute}"
        step, bytes_held = seconds(c.work), held(c.work)
        if not (math.isfinite(step) and step > 0 and math.isfinite(bytes_held) and bytes_held > 0):
            wrong.append(f"{where}: {step} s, {bytes_held} bytes")
        # More memory never fits less.
        larger = replace(c.work.machine, memory=1.5 * c.work.machine.memory)
        roomy = replace(spec, cluster=replace(spec.cluster, machine=larger))
        again = predicted(c.layout, replace(c.work, machine=larger), c.mesh, roomy)
        if (c.fits and not again.fits) or (c.safe and not again.safe):
            wrong.append(f"{where}: fits {c.card:.3g} bytes, not {again.card:.3g}")
        # Faster hardware is never slower.
        wrong += [
            f"{where}: slower with twice the {name}"
            for name, change in FASTER.items()
            if seconds(on(c, change)) > step * SLACK
        ]
        # Longer sequences and more rows hold more; recomputation costs time; a cut costs no memory.
        if held(replace(c.work, seq_len=2 * c.work.seq_len)) < bytes_held / SLACK:
            wrong.append(f"{where}: twice the sequence holds less")
        if held(replace(c.work, micro_batch=2 * c.work.micro_batch)) < bytes_held / SLACK:
            wrong.append(f"{where}: twice the micro-batch holds less")
        if seconds(replace(c.work, recompute="full")) < seconds(replace(c.work, recompute="none")) / SLACK:
            wrong.append(f"{where}: recomputation is faster")
        if c.work.offload == "none" and held(replace(c.work, offload="all")) > bytes_held * SLACK:
            wrong.append(f"{where}: offload holds more on the card")
        if c.work.offload == "none" and seconds(replace(c.work, offload="all")) < step / SLACK:
            wrong.append(f"{where}: offload is faster")
        # Limits: never above the peak; with endless links and bandwidths only products are left.
        if speed_of(c.work, speed_coefficients()).mfu > 1:
            wrong.append(f"{where}: above the peak")
        endless = on(c, lambda m: replace(m, inside=1e18, outside=1e18, hbm=1e18, host=1e18, domain=10**6))
        if seconds(endless) > step * SLACK:
            wrong.append(f"{where}: endless links are slower")
    return wrong


def test_fifty_random_jobs_contradict_no_law() -> None:
    assert [text for seed in range(50) for text in violations(seed)] == []


@pytest.mark.full
def test_five_hundred_random_jobs_contradict_no_law() -> None:
    assert [text for seed in range(50, 550) for text in violations(seed)] == []
