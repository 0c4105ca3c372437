"""The language model within a model with a vision tower: the same logits, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import Source
from safetensors.torch import load_file
from whole_models import whole_config

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.export.untrained_tensors import carried_state
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.models.loading.multimodal import class_of_whole
from paceline.models.lora.lora import Adapter
from paceline.plan.features.lora import adapter_of
from paceline.plan.model.family import composites, in_part
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import to_json
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from tests.unit.checkpoint.checkpoint_samples import OneRank

FEW = ("gemma3", "qwen2_5_vl", "qwen3_5", "qwen3_vl_moe")
EVERY = [pytest.param(k, marks=() if k in FEW else pytest.mark.slow) for k in composites()]


def _saved(kind: str, place: Path) -> Any:
    config = whole_config(kind)
    torch.manual_seed(0)
    whole = class_of_whole(config)(config).eval()
    whole.save_pretrained(place)
    (place / "preprocessor_config.json").write_text('{"size": 28}')
    return whole


@pytest.mark.parametrize("kind", EVERY)
def test_logits_of_a_text_are_those_of_the_whole(kind: str, tmp_path: Path) -> None:
    whole = _saved(kind, tmp_path)
    module = HFModelFactory(Source(name_or_path=str(tmp_path)), attention="sdpa")().eval()
    ids = torch.randint(3, 80, (2, 9))
    with torch.no_grad():
        found, expected = (model(input_ids=ids).logits for model in (module.hf, whole))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert "not trained, copied unchanged" in module.notes()["tensors"]
    build = HFModelFactory(Source(name_or_path=str(tmp_path)))
    found = build.account()
    assert found is not None and not found.found.refused
    assert build.saved_config["architectures"] == [type(whole).__name__]


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl"])
def test_the_plan_counts_what_is_carried(kind: str, tmp_path: Path) -> None:
    _saved(kind, tmp_path)
    source = ModelSection(name_or_path=str(tmp_path))
    shape, found = shape_of(source), HFModelFactory(source).account()
    assert shape is not None and found is not None
    spans = [found.stored[n].span for n in found.carried]
    assert (shape.carried, shape.carried_bytes) == (len(spans), sum(b - a for a, b in spans))
    trained = HFModelFactory(source)()
    assert shape.num_parameters == sum(p.numel() for p in trained.parameters())


@pytest.mark.parametrize("kind", composites())
def test_each_weight_is_of_the_text_or_of_one_other_part(kind: str) -> None:
    config = whole_config(kind)
    with torch.device("meta"):
        whole = class_of_whole(config)(config)
    text = {id(p) for p in [*whole.get_decoder().parameters(), *whole.get_output_embeddings().parameters()]}
    parts = composites()[kind].parts
    places = {name: in_part(name, parts) for name, _ in whole.named_parameters()}
    for name, parameter in whole.named_parameters():
        assert bool(places[name]) != (id(parameter) in text), name
    assert {parts[place] for place in places.values() if place} == {"vision", "projector"}


def trained_checkpoint(folder: Path, run: Path, spec: AdapterSpec | None = None) -> Path:
    """A checkpoint of the folder's language model, every trained weight moved."""
    build = HFModelFactory(Source(name_or_path=str(folder)), adapter=spec)
    module, found = build(), build.account()
    assert found is not None
    tensors = [("param", n, p.detach() + 0.125) for n, p in module.plain_named_parameters()]
    moved = 0.125  # of numbers alone: a buffer may hold places
    tensors += [
        ("buffer", n, b + moved if b.is_floating_point() else b) for n, b in module.plain_named_buffers()
    ]
    shards = [Shard("policy", n, kind, tuple(t.shape), (0,) * t.ndim, t) for kind, n, t in tensors]
    state: dict[str, Any] = {"carried": carried_state(folder, str(folder), None, found.carried)}
    files = {"config.json": json.dumps(build.saved_config).encode()}
    if isinstance(module.adapter, Adapter):
        state |= {"adapter": to_json(module.adapter.spec), "base_model": dict(module.adapter.base)}
        state["config"] = {"model": {"name_or_path": str(folder)}, "training": {}}
        files["adapter_config.json"] = json.dumps(dict(module.adapter.peft)).encode()
    return Checkpointer(RunDir.at(run), OneRank(), None).save(1, shards, state, files)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


@pytest.mark.parametrize("kind", EVERY)
def test_an_export_is_the_whole_with_the_language_model_trained(kind: str, tmp_path: Path) -> None:
    whole = _saved(kind, tmp_path / "base")
    export_hf(trained_checkpoint(tmp_path / "base", tmp_path / "run"), tmp_path / "out")
    before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("base", "out"))
    assert set(before) == set(after)
    build = HFModelFactory(Source(name_or_path=str(tmp_path / "base")))
    found = build.account()
    assert found is not None
    carried = set(found.carried)
    assert all(same_bytes(before[n], after[n]) == (n in carried) for n in before)
    told, was = (json.loads((tmp_path / f / "config.json").read_text()) for f in ("out", "base"))
    assert {k: v for k, v in told.items() if was.get(k) != v} == {}
    assert (tmp_path / "out/preprocessor_config.json").read_text() == '{"size": 28}'
    again = type(whole).from_pretrained(tmp_path / "out").state_dict()
    text = HFModelFactory(Source(name_or_path=str(tmp_path / "out")))().hf.state_dict()
    assert sum(any(torch.equal(t, o) for o in again.values()) for t in text.values()) == len(text)


def test_an_adapter_leaves_merged_into_the_whole(tmp_path: Path) -> None:
    _saved("qwen2_5_vl", tmp_path / "base")
    spec = AdapterSpec(r=2, alpha=4.0, target_modules=("q_proj", "v_proj"))
    saved = trained_checkpoint(tmp_path / "base", tmp_path / "run", spec)
    assert export_hf(saved, tmp_path / "out", merge=True).load_checked
    before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("base", "out"))
    moved = {n for n in before if not same_bytes(before[n], after[n])}
    assert set(before) == set(after)
    assert moved and all(
        n.startswith("model.layers.") and n.endswith(("q_proj.weight", "v_proj.weight")) for n in moved
    )


PATTERNS = {
    "rank_pattern": {"^model.layers.0.*": 1, "v_proj": 3},
    "alpha_pattern": {"layers.1.self_attn.q_proj": 1.5, "^model.layers.0.*v_proj": 9},
}
EXPERTS = {"target_parameters": ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gemma3", {"modules_to_save": ("embed_tokens",)}),  # its tower has layers named q_proj, too
        ("qwen3_vl_moe", EXPERTS),
        ("gemma3", {"modules_to_save": ("norm",), **PATTERNS}),
        (
            "qwen2_5_vl",
            {
                "layers_to_transform": (1,),
                "exclude_modules": (r".*1\.self_attn\.v.*",),
                "init_lora_weights": "pissa",
            },
        ),
        pytest.param("llama4", {}, marks=pytest.mark.slow),
        pytest.param("llava", {}, marks=pytest.mark.slow),
    ],
)
def test_an_adapter_alone_is_opened_by_peft_on_the_whole(
    kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    from peft import PeftModel

    _saved(kind, tmp_path / "base")
    spec = AdapterSpec(r=2, alpha=4.0, target_modules=("q_proj", "v_proj"), **more)
    saved = trained_checkpoint(tmp_path / "base", tmp_path / "run", spec)
    export_hf(saved, tmp_path / "alone")
    export_hf(saved, tmp_path / "merged", merge=True)
    load: Any = class_of_whole(whole_config(kind)).from_pretrained
    base, merged = (load(tmp_path / folder).eval() for folder in ("base", "merged"))
    ids = torch.randint(3, 80, (2, 9))
    with torch.no_grad():
        plain, expected = base(input_ids=ids).logits, merged(input_ids=ids).logits
        opened = PeftModel.from_pretrained(base, str(tmp_path / "alone"))
        found = opened(input_ids=ids).logits
    assert (found - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not any("lora_" in name and "vision" in name for name, _ in opened.named_parameters())
    # and a further run starts from it
    start = adapter_of(LoraSection(adapter_name_or_path=str(tmp_path / "alone")))
    again = HFModelFactory(Source(name_or_path=str(tmp_path / "base")), adapter=start)()
    with torch.no_grad():
        torch.testing.assert_close(again.eval().hf(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_tower_that_lacks_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    _saved("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(n for n in tensors if "vision_tower" in n)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"models.missing_weights[\s\S]*vision_tower"):
        HFModelFactory(Source(name_or_path=str(tmp_path)))()


def test_a_reward_model_is_of_the_language_model_alone(tmp_path: Path) -> None:
    _saved("qwen2_5_vl", tmp_path)
    build = HFModelFactory(Source(name_or_path=str(tmp_path)), Role.REWARD)
    assert "left out" in build().notes()["tensors"]
    assert build.saved_config["architectures"] == ["Qwen2ForSequenceClassification"]
    assert build.saved_config["model_type"] == "qwen2"
