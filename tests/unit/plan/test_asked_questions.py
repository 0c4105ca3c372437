"""Questions that people ask of the planner, beside what was published of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.planning import ALL_LINEAR
from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.from_plan import adapter_work
from paceline.plan.cost.report import Forecast, forecast, text
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import model_shape
from paceline.plan.plan import AdapterSpec, Quantization

#: Models and hardware, what was published of them (bytes a card, tokens a second and card), and by whom
QUESTIONS = json.loads(Path(__file__).with_name("asked_questions.json").read_text(encoding="utf-8"))


def asked(model: str, hardware: str, lora: int = 0, bits: int = 0, **sizes: int) -> Forecast:
    """The forecast as ``paceline plan --model … --hardware …`` makes it."""
    shape = model_shape(model)
    quantization = Quantization(bits) if bits else None
    adapter = (
        AdapterSpec(lora, 2.0 * lora, target_modules=ALL_LINEAR, quantization=quantization) if lora else None
    )
    return forecast(
        model, SearchSpec(shape, cluster_of(hardware), adapter=adapter_work(shape, adapter), **sizes)
    )


def taken(found: Forecast) -> Candidate:
    assert found.chosen is not None, text(found)
    return found.chosen


def rate(c: Candidate) -> float:
    return c.work.step_tokens / c.step / c.work.world


def kind(c: Candidate) -> str:
    """The layout's kind, as ``asked_questions.json`` has it."""
    axes = (" tp" if c.work.tp > 1 else "") + (" pp" if c.work.pp > 1 else "")
    return f"zero{c.work.zero}{axes}{' cpu' if c.work.offload == 'all' else ''}"


@pytest.mark.parametrize("question", QUESTIONS, ids=[str(q["question"]) for q in QUESTIONS])
def test_a_question_is_answered_as_those_who_ran_it_published(question: dict[str, Any]) -> None:
    """By the layout that its publishers ran, with their number in the band that is printed with it."""
    sizes = {key: question[key] for key in ("seq_len", "rows") if key in question}
    found = asked(
        question["model"], question["hardware"], question.get("lora", 0), question.get("bits", 0), **sizes
    )
    best = taken(found)
    assert kind(best) == question["layout"] and best.safe
    assert [words for words in question.get("says", ()) if words not in text(found)] == []
    if "tokens" in question:
        low, high = spread("speed")
        assert low <= question["tokens"] / rate(best) <= high
    low, high = spread("memory")
    if "bytes" in question:
        assert low <= question["bytes"] / best.bytes <= high
    if "tensors" in question:  # without the context, of the batch that was measured
        run = (best.strategy, question["micro_batch"], question["recompute"])
        [as_run] = (
            c for c in search(found.spec) if (c.strategy, c.work.micro_batch, c.work.recompute) == run
        )
        assert low <= question["tensors"] / (as_run.bytes - as_run.peak.overhead) <= high


def test_memory_of_a_host_that_is_not_given_is_assumed_and_said() -> None:
    """405 B with offload on one card would need 6.6 TiB of host memory."""
    found = asked("llama-3.1-405b", "1xH100")
    assert found.chosen is None
    assert "host memory 6,804 GiB of 256 assumed" in {c.binding for c in found.rows}
    small = asked("llama-2-7b", "1xRTX-4090-24GB")
    assert any("256 GB of host memory a node are assumed" in line for line in small.advice)
    assert not any("assumed" in line for line in asked("llama-3.1-405b", "p5.48xlarge").advice)


def test_what_fits_with_less_than_the_margin_shows_how_fast_it_is() -> None:
    spec = asked("llama-3-8b", "8xH100").spec
    machine = spec.cluster.machine
    small = (replace(machine, memory=tenths / 10 * GIB) for tenths in range(90, 200))
    jobs = (replace(spec, cluster=replace(spec.cluster, machine=m)) for m in small)
    found = next(f for f in map(partial(forecast, "tight"), jobs) if any(c.fits for c in f.rows))
    assert found.chosen is None and "Nothing fits with the safety margin." in text(found)
    tight = [line.split() for line in text(found).splitlines() if line.endswith(" tight")]
    assert tight and all(float(words[-3]) > 0 and words[-2].endswith("%") for words in tight)


def test_the_config_s_layout_is_recommended_where_it_is_the_fastest() -> None:
    spec = asked("llama-3-8b", "8xH100").spec
    fastest = max((c for c in search(spec) if c.safe), key=rate)
    own = replace(fastest, speed=replace(fastest.speed, compute=fastest.speed.compute / 2))
    assert forecast("own", spec, own).chosen is own
    full = replace(spec, cluster=replace(spec.cluster, machine=replace(spec.cluster.machine, memory=3 * GIB)))
    assert "Nothing fits" not in text(forecast("own", full, own))


def test_an_adapter_s_rank_and_its_packed_base_cost_time() -> None:
    """By the same layout: 4-bit weights are expanded at each use, a rank multiplies."""
    steps = [
        next(
            c.step
            for c in search(asked("llama-3-8b", "1xA100-SXM4-80GB", lora=rank, bits=bits).spec)
            if c.work.micro_batch == 1 and c.layout.whole_copies and c.work.recompute == "full"
        )
        for rank, bits in ((16, 0), (16, 4), (256, 0))
    ]
    assert steps[1] > 1.02 * steps[0] and steps[2] > 1.05 * steps[0]
