"""Whether a model trains with its tower: by the key, its config and the rows; what is refused with images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import A100
from vision_families import FAMILIES
from vision_models import vision_config

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.data.images.decide import images_in_rows
from paceline.models.loading.multimodal import class_of_whole
from paceline.plan.explain import overview
from paceline.plan.features.freezing import Freezing
from paceline.plan.features.vision import OF_IMAGES, rates_of_parts
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

TEXT = {
    "model_type": "qwen2_5_vl_text",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
SEES: dict[str, Any] = {"model_type": "qwen2_5_vl", "text_config": TEXT, "vision_config": {}}
UNREAD = {**SEES, "model_type": "aria", "text_config": {**TEXT, "model_type": "llama"}}
READS: dict[str, Any] = {**TEXT, "model_type": "qwen2"}


def plan_of(of: dict[str, Any], *, images: bool = True, world: int = 1, **sections: Any) -> Plan:
    written = {
        "model": {"config": of, "tokenizer": "t", **sections.get("model", {})},
        "data": {"train": [{"path": "rows.jsonl"}], **sections.get("data", {})},
        "training": {"max_steps": 4, **sections.get("training", {})},
        **({"lora": sections["lora"]} if "lora" in sections else {}),
    }
    hardware = replace(A100, num_devices=world)
    job = Job(Config.from_json(written), hardware, world_size=world, launcher="spawn", run_dir="/nowhere/run")
    return make_plan(replace(job, images=images))


def about(plan: Plan, subject: str) -> Any:
    return next((d for d in plan.decisions if d.subject == subject), None)


@pytest.mark.parametrize(
    ("model", "images", "key", "on"),
    [
        (SEES, True, "auto", True),
        (SEES, False, "auto", False),
        (SEES, False, True, True),
        (SEES, True, False, False),
        (READS, False, "auto", False),
        (READS, True, "auto", False),
        (READS, True, False, False),
    ],
)
def test_a_tower_is_trained_with_where_the_model_has_one_and_rows_have_images_or_as_the_key_says(
    model: dict[str, Any], images: bool, key: Any, on: bool
) -> None:
    plan = plan_of(model, images=images, model={"vision": key})
    assert plan.vision is on and Plan.from_json(plan.to_json()).vision is on
    decision = about(plan, "model.vision")
    assert (decision is not None) is (model is SEES)
    if decision is not None:
        assert decision.choice == ("on" if on else "off")
        assert on or "language model alone" in decision.reason


def test_keys_of_images_are_said_to_do_nothing_where_no_image_is_read() -> None:
    given: dict[str, Any] = {
        "model": {"processor_kwargs": {"size": {"shortest_edge": 56}}},
        "data": {
            "media_dir": "/pictures",
            "image_min_pixels": 100,
            "image_max_pixels": 10_000,
            "image_refuse_pixels": 1_000_000,
            "image_cache": "disk",
        },
        "training": {"learning_rates": {"vision": 1e-6}, "unfreeze": ["^"]},
    }
    idle = plan_of(SEES, images=False, **given)
    refused = {d.subject for d in idle.decisions if not d.granted}
    assert set(OF_IMAGES) <= refused and idle.optimizer.rate_ratios == {}
    acting = plan_of(SEES, **given)
    assert not set(OF_IMAGES) & {d.subject for d in acting.decisions if not d.granted}
    assert acting.optimizer.rate_ratios == {"visual": pytest.approx(0.02), "visual.merger": 1.0}
    assert not set(OF_IMAGES) & {d.subject for d in plan_of(SEES, images=False).decisions}


GRPO = {"algorithm": "grpo", "rollout": {"rewards": [{"name": "ended"}]}}


@pytest.mark.parametrize(
    ("model", "training", "key", "code"),
    [
        (READS, {}, True, "plan.vision_no_tower"),
        (
            SEES,
            {"learning_rate": 0, "learning_rates": {"vision": 1e-6}},
            "auto",
            "plan.vision_rates",
        ),
        (UNREAD, {}, "auto", "plan.vision_family"),
        (SEES, {"eval_generate": True, "eval_strategy": "epoch"}, "auto", "plan.vision_answers"),
        (SEES, GRPO, "auto", "plan.vision_algorithm"),
        (SEES, {**GRPO, "algorithm": "ppo"}, True, "plan.vision_algorithm"),
        (SEES, {**GRPO, "algorithm": "rloo"}, True, "plan.vision_algorithm"),
        (SEES, {**GRPO, "algorithm": "reinforce_plus_plus"}, True, "plan.vision_algorithm"),
        (SEES, {"algorithm": "embedding"}, "auto", "plan.vision_algorithm"),
        (SEES, {"algorithm": "reranker"}, "auto", "plan.vision_algorithm"),
        (
            SEES,
            {"algorithm": "distillation", "distillation": {"teacher_model": "org/teacher"}},
            "auto",
            "plan.vision_algorithm",
        ),
        (
            SEES,
            {"distributed_strategy": "fsdp", "parallelism": {"cp_size": 2}},
            "auto",
            "plan.vision_context",
        ),
        (
            SEES,
            {"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}},
            "auto",
            "plan.vision_pipeline",
        ),
    ],
)
def test_what_does_not_train_with_images_is_refused_by_name(
    model: dict[str, Any], training: dict[str, Any], key: Any, code: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(model, world=2, model={"vision": key}, training=training)
    [finding] = [d for d in refused.value.diagnostics if d.code.startswith("plan.vision")]
    assert finding.code == code and finding.hint
    if model is SEES:  # without images it starts
        with_text = {"vision": False}
        try:
            plan_of(model, world=2, images=False, model=with_text, training=training)
        except ConfigError as error:
            assert not [d for d in error.diagnostics if "vision" in d.code]


PICTURE = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "What?", "output": "A cat.", "images": ["cat.png"]},
        {"prompt": "What?", "completion": "A cat.", "image": PICTURE},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
        {"messages": [{"role": "user", "content": "<image>What?", "images": ["cat.png"]}]},
        {"messages": json.dumps([{"role": "user", "content": [{"type": "image", "image": "cat.png"}]}])},
        {"question": "What?", "answer": "A cat.", "pictures": ["cat.png"]},
        {"query": "<img>cat.png</img>What?", "response": "A cat."},
        {"messages": [{"role": "user", "content": "Look: <img>cat.png</img>"}]},
    ],
)
def test_the_first_rows_say_whether_there_are_images(row: dict[str, Any], tmp_path: Path) -> None:
    text = {"instruction": 'What does <img src="a"> do?', "output": "A cat.", "images": [], "x": {"type": []}}
    plain, seen = tmp_path / "plain.jsonl", tmp_path / "seen.jsonl"
    plain.write_text(json.dumps(text) + "\n")
    seen.write_text("".join(json.dumps(r) + "\n" for r in (text, row)))

    def images(*sets: Any) -> bool | None:
        config = Config.from_json({"data": {"train": list(sets)}})
        return images_in_rows(config.data, imports=False)

    with_columns = {"path": str(seen), "columns": {"images": "pictures"}}
    assert images({"path": str(plain)}) is False
    assert images({"path": str(plain)}, with_columns) is True
    assert images({"path": str(tmp_path / "missing.jsonl")}) is False
    assert images({"path": "owner/name"}) is None


def test_the_tower_is_frozen_unless_it_is_named() -> None:
    assert about(plan_of(SEES), "training.freeze").choice == "the vision tower"
    named = plan_of(SEES, training={"unfreeze": ["^"]})
    assert about(named, "training.freeze") is None and Freezing.of(named).parts
    assert not Freezing.of(plan_of(SEES, lora={"r": 4})).parts  # an adapter's base is frozen anyway
    assert not Freezing.of(plan_of(SEES, images=False)).parts
    assert "with images (vision tower: frozen)" in overview(plan_of(SEES))
    assert "with images (vision tower: as unfreeze says)" in overview(named)
    assert "with images" not in overview(plan_of(SEES, images=False))


@pytest.mark.parametrize(
    ("rate", "more", "where"),
    [
        ("vision", {}, "training.learning_rates.vision"),
        ("projector", {}, ""),
        ("vision", {"training": {"unfreeze": ["^"]}}, ""),
        ("projector", {"lora": {"r": 4}}, "training.learning_rates.projector"),
        ("projector", {"lora": {"r": 4, "modules_to_save": ["merger"]}}, ""),
    ],
)
def test_a_rate_of_what_is_frozen_is_refused(rate: str, more: dict[str, Any], where: str) -> None:
    training = {"learning_rates": {rate: 1e-6}, **more.get("training", {})}
    sections = {**more, "training": training}
    if not where:
        plan_of(SEES, **sections)
        return
    with pytest.raises(ConfigError) as caught:
        plan_of(SEES, **sections)
    assert [(d.code, d.where) for d in caught.value.diagnostics] == [("plan.freeze_rate", where)]


def test_the_rates_of_parts_are_named() -> None:
    rates = {"learning_rate": 1e-4, "learning_rates": {"vision": 1e-5, "projector": 2e-4}, "unfreeze": ["^"]}
    assert rates_of_parts(plan_of(SEES, training=rates)) == {"vision": 0.1, "projector": 2.0}
    assert rates_of_parts(plan_of(SEES)) == {}


@pytest.mark.parametrize(
    ("kind", "option", "refused"),
    [
        ("qwen2_5_vl", "sequence_parallel", True),
        ("qwen2_5_vl", "loss_parallel", False),
        ("gemma4", "loss_parallel", True),
    ],
)
def test_options_of_tensor_parallelism_that_images_do_not_go_with(
    kind: str, option: str, refused: bool
) -> None:
    of = (
        SEES
        if kind == "qwen2_5_vl"
        else {**SEES, "model_type": kind, "text_config": {**TEXT, "model_type": f"{kind}_text"}}
    )
    training = {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2, option: True}}
    try:
        plan_of(of, world=2, training=training)
        wrong: list[str] = []
    except ConfigError as error:
        wrong = [d.where for d in error.diagnostics if d.code == "plan.vision_tensor"]
    assert wrong == ([f"training.parallelism.{option}"] if refused else [])


@pytest.mark.parametrize(("kind", "refused"), [("qwen3_vl", True), ("qwen2_5_vl", False)])
def test_gradients_are_not_summed_in_another_order(kind: str, refused: bool) -> None:
    of = {**SEES, "model_type": kind, "text_config": {**TEXT, "model_type": f"{kind}_text"}}
    try:
        plan_of(of, world=2, training={"distributed_strategy": "zero2"})
        wrong: list[str] = []
    except ConfigError as error:
        wrong = [d.code for d in error.diagnostics]
    assert ("plan.vision_order" in wrong) is refused


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3", "llava", "smolvlm", "mistral3"])
def test_wrong_names_of_frozen_parts_are_found_by_the_plan(kind: str) -> None:
    ids = {token: number for number, token in enumerate(FAMILIES[kind].tokens)}
    config = vision_config(kind, 320, ids)
    short = {"max_length": 64}
    with torch.device("meta"):
        names = [name for name, _ in class_of_whole(config)(config).named_parameters()]
    patterns = sorted({name.rpartition(".")[0] for name in names} - {"lm_head"})
    plan_of(config.to_dict(), data=short, training={"freeze": patterns, "unfreeze": ["vision"]})
    with pytest.raises(ConfigError) as raised:
        plan_of(config.to_dict(), data=short, training={"freeze": ["model.layers.0", "visul", "projector"]})
    (wrong,) = raised.value.diagnostics
    assert wrong.code == "plan.freeze_name" and "model.layers.0, visul" in str(wrong)


@pytest.mark.parametrize(("images", "kernel"), [(True, "flex"), (False, "varlen_flash")])
def test_the_kernel_is_that_of_tokens_which_see_later_ones(images: bool, kernel: str) -> None:
    ids = {token: number for number, token in enumerate(FAMILIES["gemma3"].tokens)}
    of = vision_config("gemma3", 320, ids).to_dict()
    plan = plan_of(of, images=images, data={"max_length": 64}, training={"mixed_precision": "bf16"})
    assert about(plan, "model.attn_implementation").reason.startswith(kernel)
