"""Questions that people ask of the planner, beside what was published of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from paceline.cli.planning import ALL_LINEAR
from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.from_plan import adapter_work
from paceline.plan.cost.report import Forecast, forecast, text
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import model_shape
from paceline.plan.plan import AdapterSpec, Quantization


def asked(model: str, hardware: str, lora: int = 0, bits: int = 0) -> Forecast:
    """The forecast as ``paceline plan --model … --hardware …`` makes it."""
    shape = model_shape(model)
    quantization = Quantization(bits) if bits else None
    adapter = (
        AdapterSpec(lora, 2.0 * lora, target_modules=ALL_LINEAR, quantization=quantization) if lora else None
    )
    return forecast(model, SearchSpec(shape, cluster_of(hardware), adapter=adapter_work(shape, adapter)))


def taken(found: Forecast) -> Candidate:
    assert found.chosen is not None, text(found)
    return found.chosen


def rate(c: Candidate) -> float:
    return c.work.step_tokens / c.step / c.work.world


def test_seven_billion_parameters_with_offload_on_one_card() -> None:
    found = asked("llama-2-7b", "1xRTX-4090-24GB")
    assert taken(found).work.offload == "all"
    assert taken(found).bytes <= taken(found).limit
    assert "leanest:  zero3 + cpu one process 1×128r" in text(found), "the 5 GiB of its own row"
    assert "Nothing fits" not in text(found)
    assert "GiB of host memory" in text(found)


def test_a_4_bit_adapter_of_70_billion_parameters_on_two_small_cards() -> None:
    """PEFT's guide of FSDP with QLoRA: 19.6 GB a card with offload on 2 × 24 GB."""
    found = taken(asked("llama-2-70b", "2xRTX-4090-24GB", lora=16, bits=4))
    assert (found.work.zero, found.work.offload) == (3, "all")
    low, high = spread("memory")
    assert low <= 19.6e9 / found.bytes <= high


def test_70_billion_parameters_on_1024_cards() -> None:
    """PyTorch's blog of November 2024: 960 tokens a second and card by FSDP on 512 H100."""
    found = taken(asked("llama-3-70b", "1024xH100"))
    low, high = spread("speed")
    assert found.work.zero == 3 and found.work.pp == found.work.tp == 1, "as its publishers ran it"
    assert low <= 960 / rate(found) <= high
    assert rate(found) > 850


def test_a_mixture_of_experts_names_the_parallelism_that_is_missing() -> None:
    """NeMo AutoModel: 12,040 tokens a second and card with the experts spread over 8 cards."""
    found = asked("qwen3-30b-a3b", "8xH100")
    assert "expert parallelism, which Paceline lacks" in " ".join(found.advice)
    best = taken(found)
    assert best.work.tp > 1 and best.work.offload == "none", "whole experts over tp, not offload"
    low, high = spread("speed")
    assert low <= 12_040 / rate(best) <= high


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
