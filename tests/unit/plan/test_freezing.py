"""``training.freeze`` and ``unfreeze``: which parameters are trained, by other programs' own answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.import_export.import_config import import_data
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.plan.cost.from_plan import cluster_of_hardware, planned_candidate, search_spec_of
from paceline.plan.features.freezing import Freezing, trained_part
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.family import composites
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.model import BuildOptions
from paceline.rules.planning import make_plan

RECORDED = json.loads((Path(__file__).parents[1] / "config" / "recorded" / "freezing.json").read_text())
SYSTEMS = {"axolotl": "axolotl", "ms-swift": "swift", "llamafactory": "llamafactory"}
BASIS = {
    "axolotl": {"base_model": "m", "datasets": [{"path": "d.jsonl", "type": "chat_template"}]},
    "ms-swift": {"model": "m", "dataset": ["d.jsonl"], "tuner_type": "full"},
    "llamafactory": {"model_name_or_path": "m", "stage": "sft", "dataset": "d", "template": "llama3"},
}
META = BuildOptions(device=torch.device("meta"))


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['program']} {c['keys']}"[:80])
def test_an_import_trains_what_the_other_program_trains(case: dict[str, Any]) -> None:
    program = case["program"]
    tree = BASIS[program] | case["keys"]
    imported = import_data(tree, dict.fromkeys(tree, 1), "theirs.yaml", SYSTEMS[program])
    settings = {path: found.value for path, found in imported.settings.items()}
    training = {
        key: settings[f"training.{key}"] for key in ("freeze", "unfreeze") if f"training.{key}" in settings
    }
    config = config_of(training)
    hf = HFModelFactory(config.model, freezing=Freezing.configured(config.training))(META).hf
    trained = [index for index, p in enumerate(hf.parameters()) if p.requires_grad]
    assert trained == [index for start, end in case["trained"] for index in range(start, end)]
    assert not [f for f in imported.findings.values() if f.key in case["keys"] and f.verdict.value == "lost"]


def config_of(training: dict[str, Any], **sections: Any) -> Config:
    model = {"config": RECORDED["model"], "tokenizer": "none", **sections.pop("model", {})}
    values = {"model": model, "data": {"train": "none.jsonl", "max_length": 64}, "training": training}
    return Config.model_validate(values | sections)


def plan_of(training: dict[str, Any], world: int = 1, **sections: Any) -> Plan:
    hardware = replace(cluster_of("2xH100").hardware(), packages=("deepspeed", "peft"))
    launcher = "torchrun" if world > 1 else "single"
    config = config_of(training, **sections)
    return make_plan(Job(config, hardware, world_size=world, launcher=launcher, run_dir="none"))


MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2, "model_type": "mixtral"}
HALF = ["layers[:6]", "embed_tokens"]


@pytest.mark.parametrize(
    ("training", "sections", "code", "says"),
    [
        ({"freeze": ["embed_toknes", "layers.12"]}, {}, "freeze_name", "did you mean embed_tokens"),
        ({"freeze": ["embed_toknes", "layers.12"]}, {}, "freeze_name", "layers.0 to layers.11"),
        ({"unfreeze": ["layers[12:]"]}, {}, "freeze_name", "layers[12:]"),
        ({"freeze": ["^nothing"]}, {}, "freeze_name", "^nothing"),
        ({"freeze": ["^model", "lm_head"]}, {}, "freeze_all", "training.unfreeze"),
        ({"freeze": HALF}, {"lora": {"r": 4}}, "freeze_adapters", "modules_to_save"),
        (
            {"freeze": HALF, "parallelism": {"pp_size": 2}, "gradient_accumulation_steps": 4},
            {},
            "freeze_pipeline",
            "fsdp",
        ),
        (
            {"freeze": HALF, "distributed_strategy": "zero2", "mixed_precision": "bf16"},
            {},
            "freeze_rounded",
            "float32",
        ),
        (
            {"freeze_router": True, "distributed_strategy": "zero2", "mixed_precision": "bf16"},
            {"model": {"config": {**RECORDED["model"], **MIXTURE}}},
            "freeze_rounded",
            "float32",
        ),
        (
            {"freeze": ["lm_head"]},
            {"model": {"config": RECORDED["model"] | {"tie_word_embeddings": True}}},
            "freeze_name",
            "tied to model.embed_tokens.weight",
        ),
    ],
)
def test_what_cannot_be_frozen_is_refused_by_the_plan(
    training: dict[str, Any], sections: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(training, 2, **sections)
    [found] = [d for d in caught.value.diagnostics if d.code == f"plan.{code}"]
    assert says in f"{found.what} {found.found} {found.hint}"


def test_a_pattern_that_names_nothing_is_refused_where_no_plan_knows_the_names() -> None:
    with pytest.raises(ConfigError) as caught:
        HFModelFactory(config_of({}).model, freezing=Freezing(("layer.0",)))(META)
    assert caught.value.diagnostics[0].code == "plan.freeze_name"


def test_the_more_is_frozen_the_less_is_needed() -> None:
    """States and forecast fall with each frozen layer; with nothing frozen they are as without the keys."""
    needs = []
    for count in (0, 3, 6, 9):
        plan = plan_of({"freeze": [f"layers[:{count}]"]} if count else {})
        hardware = cluster_of("2xH100").hardware()
        cluster = cluster_of_hardware(hardware, 1)
        assert cluster is not None and plan.memory is not None and plan.memory.largest is not None
        spec = search_spec_of(plan, cluster)
        assert spec is not None
        candidate = planned_candidate(plan, spec)
        assert candidate is not None
        needs.append((plan.memory.largest.total, candidate.bytes, candidate.step))
    for less, more in zip(needs[1:], needs, strict=False):
        assert all(a <= b for a, b in zip(less, more, strict=True)) and less[0] < more[0]


@pytest.mark.parametrize("freeze_router", [False, True])
def test_frozen_weights_are_not_rounded(freeze_router: bool) -> None:
    """What is frozen is saved as it was loaded, under copies in bfloat16 too."""
    model = config_of({}, model={"config": RECORDED["model"] | (MIXTURE if freeze_router else {})}).model
    options: dict[str, Any] = (
        {"freeze_router": True} if freeze_router else {"freezing": Freezing(("layers.0",))}
    )
    exact = dict(HFModelFactory(model)().plain_named_parameters())
    root = HFModelFactory(model, compute_dtype=torch.bfloat16, **options)()
    frozen = {name: p for name, p in root.plain_named_parameters() if not p.requires_grad}
    assert frozen and all(torch.equal(p, exact[name]) for name, p in frozen.items())


@pytest.mark.parametrize(
    ("pattern", "trained"),
    [("layers[/4]", [2, 5, 8, 11]), ("layers[/12]", list(range(12))), ("layers[/5]", [])],
)
def test_the_last_layer_of_each_part(pattern: str, trained: list[int]) -> None:
    names = [f"model.layers.{n}.mlp.weight" for n in range(12)] + ["lm_head.weight"]
    found = Freezing(("*",), (pattern,), head="none")
    assert found.trained(names) == {names[n] for n in trained}
    assert [d.code for d in found.check(names, {})] == ([] if trained else ["plan.freeze_name"])


def test_a_smaller_model_keeps_the_patterns_that_it_has() -> None:
    small = [f"model.layers.{n}.mlp.weight" for n in range(2)] + ["lm_head.weight"]
    assert Freezing(("layers.9", "layers.0")).within(small) == Freezing(("layers.0",))
    assert Freezing((), ("layers[-1:]",)).within(small).trained(small) == {small[1]}
    for lost in (Freezing(("layers.9",), ("lm_head",)), Freezing((), ("layers.9",))):
        assert lost.within(small).trained(small) == set(small)


def test_layers_below_the_first_trained_one_save_nothing() -> None:
    shape = plan_of({}).shape
    assert shape is not None
    first = {
        key: trained_part(shape, Freezing(*patterns)).first_layer
        for key, patterns in {
            "all": ((), ()),
            "prefix": (("embed_tokens", "layers[:4]"), ()),
            "with embedding": (("layers[:4]",), ()),
            "head": ((), ("lm_head",)),
        }.items()
    }
    assert first == {"all": 0, "prefix": 4, "with embedding": 0, "head": shape.layers}


PARTS = composites()["qwen2_5_vl"].parts
BLOCKS = [f"model.visual.blocks.{n}.mlp.weight" for n in range(4)]
MERGER, HEAD = "model.visual.merger.mlp.0.weight", "lm_head.weight"
LAYERS = [f"model.language_model.layers.{n}.mlp.weight" for n in range(2)]


@pytest.mark.parametrize(
    ("freeze", "unfreeze", "trained"),
    [
        ((), (), [MERGER, *LAYERS, HEAD]),
        (("merger",), (), [*LAYERS, HEAD]),
        (("visual.merger", "lm_head"), (), LAYERS),
        (("mlp",), (), [MERGER, HEAD]),  # of the text alone
        ((), ("layers[-1:]",), LAYERS[1:]),
        ((), ("*",), [*LAYERS, HEAD]),
        ((), ("^",), [*BLOCKS, MERGER, *LAYERS, HEAD]),
        ((), ("visual.blocks[-2:]",), BLOCKS[2:]),
        (("layers.0",), ("blocks.3",), [BLOCKS[3], MERGER, LAYERS[1], HEAD]),
        (("language_model", "lm_head", "merger"), ("visual.blocks",), BLOCKS),
    ],
)
def test_a_tower_is_trained_where_it_is_named(
    freeze: tuple[str, ...], unfreeze: tuple[str, ...], trained: list[str]
) -> None:
    names = [*BLOCKS, MERGER, *LAYERS, HEAD]
    found = Freezing(freeze, unfreeze, parts=PARTS)
    assert found.trained(names) == set(trained)
    assert not [*found.check(names, {})]
