"""Optimizers under every strategy: the library's own steps on a rank's tensors, the losses of one process,
resumed bit for bit on the same shards, and on others as close as the states allow.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from paceline.config.registries.optimizers import BUILT

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("optimizer_worker.py")
WIDE = {"hidden_size": 120, "intermediate_size": 256, "num_hidden_layers": 2}
CROSSED = [["single", "fsdp"], ["fsdp", "single"]]


def case(optim: str, ways: list[str], crossed: list[list[str]] = CROSSED, **more: Any) -> dict[str, Any]:
    training = {"optim": optim, "learning_rate": 1e-3, "weight_decay": 0.1, **more.pop("training", {})}
    model = {**WIDE, "vocab_size": 14, **more.pop("model", {})}
    return {"training": training, "model": model, "ways": ways, "crossed": crossed, **more}


#: quantised moments: where shards differ from whole tensors, blocks begin elsewhere
QUANTISED = {
    "bnb 8 bit": case("adamw_bnb_8bit", ["single", "zero_redundancy", "fsdp", "tp"], shadow=True),
    "lion 8 bit": case("lion_8bit", ["single", "fsdp"], [], shadow=True),
    "rmsprop 8 bit": case("rmsprop_bnb_8bit", ["single", "fsdp"], [], shadow=True),
    "torchao 8 bit": case("adamw_torch_8bit", ["single", "zero_redundancy"], [], shadow=True),
    "torchao 4 bit": case("adamw_torch_4bit", ["single", "fsdp"], [["fsdp", "single"]], shadow=True),
}
EXACT = {
    "lion": case("lion_32bit", ["single", "fsdp", "pipeline", "zero2"], []),
    "rmsprop": case("rmsprop_bnb_32bit", ["single", "ddp", "fsdp", "zero2"]),
}


MUON = {
    "muon": case(
        "muon",
        ["single", "fsdp", "tp", "pipeline"],
        [["fsdp", "tp"], ["tp", "pipeline"]],
        section={"dtype": "float64"},
        model={"hidden_size": 60, "intermediate_size": 96},
    ),
}
MORE_MUON = {
    "experts": case(
        "muon",
        ["single", "fsdp"],
        [],
        model={
            "model_type": "qwen3_moe",
            "hidden_size": 60,
            "moe_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "float32": case(
        "muon",
        ["single", "zero_redundancy", "fsdp", "tp", "pipeline"],
        [["zero_redundancy", "pipeline"]],
        model={"hidden_size": 60, "intermediate_size": 96},
    ),
}
#: bf16 weights alone: the noise is the same on every mesh, gradients differ by bf16's rounding
ROUNDED = {
    "rounded": case(
        "adamw_bf16_rounding", ["single", "ddp", "fsdp"], [*CROSSED, ["ddp", "fsdp"]], training={"bf16": True}
    )
}
#: bf16 weights and moments alone, rounded to the nearest
PURE = {
    "adamw_torch_fused": case(
        "adamw_torch_fused", ["single", "fsdp"], CROSSED[1:], training={"pure_bf16": True}
    )
}
MORE_PURE = {
    optim: case(optim, ["single", "ddp", "fsdp"], [*CROSSED, ["ddp", "fsdp"]], training={"pure_bf16": True})
    for optim in ("adamw_torch_fused", "adamw_bnb_8bit")
}
PURE_OTHERS = {
    optim: case(optim, ["single", "ddp", "fsdp"], training={"pure_bf16": True})
    for optim in (
        "adamw_torch",
        "adamw_torch_8bit",
        "adamw_torch_4bit",
        "lion_32bit",
        "muon",
        "sgd",
        "rmsprop",
        "adagrad",
    )
}
#: a basis of 8 columns, anew every 3 steps; the third resumed step takes the saved one
GALORE = {
    "galore": case(
        "galore_adamw",
        ["single", "ddp", "zero_redundancy"],
        [["single", "ddp"], ["zero_redundancy", "single"]],
        training={
            "optim_args": "rank=8,update_proj_gap=3,scale=1.0",
            "optim_target_modules": ["attn", "mlp"],
        },
        section={"dtype": "float64"},  # in float32 the processor's last digit chooses a basis
    )
}
SMALL = {"hidden_size": 60, "intermediate_size": 96}
CONSTANT = {"lr_scheduler_type": "constant"}
AVERAGED = {
    "adamw": case(
        "schedule_free_adamw",
        ["single", "fsdp", "pipeline"],
        [["fsdp", "single"], ["single", "pipeline"]],
        training={**CONSTANT, "warmup_steps": 3},
        section={"dtype": "float64"},
        shadow=True,
        evaluate=True,
    ),
    "sgd": case(
        "schedule_free_sgd",
        ["single", "fsdp"],
        [],
        training={**CONSTANT, "learning_rate": 0.1},
        section={"dtype": "float64"},
        evaluate=True,
    ),
}


MESHES, EXACT_MESHES = ["single", "hsdp", "fsdp x tp"], {"section": {"dtype": "float64"}}
#: two axes of a mesh at once: whole equality in float64, and of packed moments with the library's own
TWO_AXES = {
    "muon": case("muon", MESHES, [["hsdp", "fsdp x tp"]], model={**SMALL}, **EXACT_MESHES),
    "muon in float32": case("muon", MESHES, [], model={**SMALL}),
    "schedule-free": case(
        "schedule_free_adamw", MESHES, [["fsdp x tp", "hsdp"]], training=CONSTANT, shadow=True, **EXACT_MESHES
    ),
    "lion": case("lion_32bit", MESHES, [["hsdp", "fsdp x tp"]]),
    "bnb 8 bit": case("adamw_bnb_8bit", MESHES, [["fsdp x tp", "hsdp"]], shadow=True),
}


class Found(dict[str, list[dict[str, Any]]]):
    """What every rank of a world found, by family; each is run when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, family: str, cases: dict[str, Any], world: int = 2) -> list[dict[str, Any]]:
        if family not in self:
            out = self.folder / family
            assert not out.exists(), "this family has failed already"
            out.mkdir()
            (out / "cases.json").write_text(json.dumps(cases))
            codes, output = run_ranks("all", world, out, script=WORKER)
            assert codes == [0] * world, "\n".join(line[-4000:] for line in output)
            self[family] = [json.loads((out / f"{rank}.json").read_text()) for rank in range(world)]
        return self[family]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("optimizers"))


def installed(cases: dict[str, Any]) -> dict[str, Any]:
    packages = {name: BUILT[c["training"]["optim"]].package for name, c in cases.items()}
    return {name: c for name, c in cases.items() if not packages[name] or find_spec(packages[name])}


def apart(a: dict[str, list[float]], b: dict[str, list[float]]) -> float:
    assert a.keys() == b.keys()
    return max(max(abs(x - y) for x, y in zip(a[name], b[name], strict=True)) for name in a)


def check_resumed(case: dict[str, Any]) -> None:
    for way in case:
        if "again" in case[way]:
            assert case[way]["again"]["losses"] == case[way]["losses"][4:], way
            assert case[way]["again"]["parameters"] == case[way]["parameters"], way


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_bitsandbytes_in_32_bits(found: Found, name: str) -> None:
    """Under every strategy as in one process; a sign may differ where a gradient is rounding alone."""
    cases = installed(EXACT)
    if not cases:
        pytest.skip("bitsandbytes is not installed")
    for rank in found.of("exact", cases):
        check_resumed(rank[name])
    made = found["exact"][0][name]
    for way in cases[name]["ways"]:
        assert made[way]["losses"] == pytest.approx(made["single"]["losses"], rel=1e-3), way
        assert made[way]["losses"][-1] < 0.8 * made[way]["losses"][0], way


@pytest.mark.parametrize("name", [*MUON, *(pytest.param(name, marks=pytest.mark.full) for name in MORE_MUON)])
def test_muon(found: Found, name: str) -> None:
    """Every mesh makes the steps of one process, experts one by one: to rounding in float64, to 1e-5 in
    float32, where the orthogonalisation is computed in float32 too.
    """
    family, cases = ("muon", MUON) if name in MUON else ("more_muon", MORE_MUON)
    for rank in found.of(family, cases):
        check_resumed(rank[name])
    made, exact = found[family][0][name], name == "muon"
    alone = made["single"]
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]
    for way, run in made.items():
        losses = run["losses"]
        assert losses == pytest.approx(alone["losses"][-len(losses) :], rel=1e-10 if exact else 1e-5), way
        assert apart(run["parameters"], alone["parameters"]) < (1e-10 if exact else 1e-4), way


@pytest.mark.full
def test_projected_gradients(found: Found) -> None:
    """Every strategy makes the steps of one process; a resume takes the saved bases. Where singular values
    lie close, the last digit of a gradient chooses the basis, and errors grow by orders of magnitude.
    """
    for rank in found.of("galore", GALORE):
        check_resumed(rank["galore"])
    made = found["galore"][0]["galore"]
    alone = made["single"]["losses"]
    assert alone[-1] < 0.8 * alone[0]
    for way, run in made.items():
        losses = run["losses"]
        assert losses == pytest.approx(alone[-len(losses) :], rel=1e-9), way


def check_pure(found: Found, name: str, cases: dict[str, Any], optim: str) -> None:
    """Resumed bit for bit on the same shards; on other ranks within what bf16 gradients differ by."""
    cases = installed(cases)
    if optim not in cases:
        pytest.skip("the package is not installed")
    for rank in found.of(name, cases):
        check_resumed(rank[optim])
    made = found[name][0][optim]
    alone = made["single"]["losses"]
    assert optim == "sgd" or alone[-1] < 0.8 * alone[0]
    for way, run in made.items():
        losses = run["losses"]
        assert losses == pytest.approx(alone[-len(losses) :], rel=3e-2 if optim == "rmsprop" else 1e-2), way


@pytest.mark.parametrize("optim", PURE)
def test_pure_bf16(found: Found, optim: str) -> None:
    check_pure(found, "pure", PURE, optim)


@pytest.mark.full
@pytest.mark.parametrize("optim", MORE_PURE)
def test_pure_bf16_on_every_mesh(found: Found, optim: str) -> None:
    check_pure(found, "more_pure", MORE_PURE, optim)


@pytest.mark.slow
@pytest.mark.parametrize("optim", PURE_OTHERS)
def test_pure_bf16_of_other_optimizers(found: Found, optim: str) -> None:
    check_pure(found, "pure_others", PURE_OTHERS, optim)


@pytest.mark.slow
def test_bf16_weights_rounded_stochastically(found: Found) -> None:
    """Resumed bit for bit on the same shards; on other ranks within what bf16 gradients differ by."""
    for rank in found.of("rounded", ROUNDED):
        check_resumed(rank["rounded"])
    made = found["rounded"][0]["rounded"]
    alone = made["single"]["losses"]
    assert alone[-1] < 0.8 * alone[0]
    for way, run in made.items():
        losses = run["losses"]
        assert losses == pytest.approx(alone[-len(losses) :], rel=2e-2), way
        assert run["losses"] != alone or way == "single", way


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGED)
def test_averaged_weights(found: Found, name: str) -> None:
    """The package's own steps; every mesh as one process; an evaluation in the middle changes nothing, and
    is that of the weights that the save holds as ``param``.
    """
    if find_spec("schedulefree") is None:
        pytest.skip("schedulefree is not installed")
    for rank in found.of("averaged", AVERAGED):
        check_resumed(rank[name])
    made = found["averaged"][0][name]
    alone = made["single"]
    # 8 steps of 1e-3 are little for SGD
    assert name != "adamw" or alone["losses"][-1] < 0.9 * alone["losses"][0]
    for way, run in made.items():
        losses = run["losses"]
        assert losses == pytest.approx(alone["losses"][-len(losses) :], rel=1e-10), way
        assert apart(run["parameters"], alone["parameters"]) < 1e-10, way
        if "again" in run:
            middle, last, saved = run["evaluated"]
            assert middle == pytest.approx(saved, rel=1e-12) and last != middle, way
            assert run["library"] in (0.0, -1.0), way


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_moments(found: Found, name: str) -> None:
    """The library's own optimizer on the same tensors makes the same bits; a resume on the same shards goes
    on bit for bit; on others within the rounding of the moments; losses fall as with fp32 moments.
    """
    cases = installed(QUANTISED)
    if name not in cases:
        pytest.skip("the package is not installed")
    for rank in found.of("quantised", cases):
        made = rank[name]
        assert ("single" in made) == (rank is found["quantised"][0])
        check_resumed(made)
        for way in cases[name]["ways"]:
            if way in made:
                assert made[way]["library"] == 0.0, way
                assert made[way]["losses"][-1] < 0.8 * made[way]["losses"][0], way
    alone, made = found["quantised"][0][name]["single"], found["quantised"][0][name]
    for way in cases[name]["ways"]:
        assert abs(made[way]["losses"][-1] / alone["losses"][-1] - 1) < 0.02, way
        if way == "zero_redundancy":  # whole tensors: the same blocks
            assert apart(made[way]["parameters"], alone["parameters"]) < 2e-3, way
    for source, target in cases[name]["crossed"]:
        onward = made[f"{source} to {target}"]
        assert abs(onward["losses"][-1] / alone["losses"][-1] - 1) < 0.05, f"{source} to {target}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_AXES)
def test_meshes_of_two_axes(found: Found, name: str) -> None:
    """HSDP and fsdp × tp make the steps of one process: to rounding in float64, a sign of Lion's apart in
    float32, and packed moments as the library packs the same shards. A save is read by the other mesh.
    """
    cases = installed(TWO_AXES)
    if name not in cases:
        pytest.skip("the package is not installed")
    for rank in found.of("two_axes", cases, world=4):
        check_resumed(rank[name])
        for way in ("hsdp", "fsdp x tp"):
            assert rank[name][way]["library"] in (0.0, -1.0), way
    made, exact = found["two_axes"][0][name], name in ("muon", "schedule-free")
    bounds = {"lion": 1e-3, "muon in float32": 1e-5}
    alone = made["single"]
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]
    for way, run in made.items():
        losses = run["losses"]
        close = 1e-10 if exact else bounds.get(name, 2e-2)
        assert losses == pytest.approx(alone["losses"][-len(losses) :], rel=close), way
        assert not exact or apart(run["parameters"], alone["parameters"]) < 1e-10, way
