"""Layers that no adapter reaches: Transformers' sources say which weights a parent reads itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from model_families import Source
from tiny_families import tiny_config

from paceline.models.factory import HFModelFactory
from paceline.models.lora.targets import READ_BY_PARENT, out_of_reach, trunk_linears
from paceline.plan.model.family import families
from paceline.plan.plan import AdapterSpec

pytest.importorskip("peft")
SOURCES = Path(transformers.__file__).parent / "models"
ASKED = frozenset(
    {"dtype", "device", "shape", "ndim", "size", "data"}
)  # of a weight, without computing with it
#: Read only under ``slow_but_exact`` with ``pretraining_tp`` above 1.
SLOW = {("BloomAttention", "dense"), ("BloomMLP", "dense_4h_to_h")}


def sources() -> Iterator[str]:
    """Yield the models' sources of supported families that read a weight of a child."""
    for kind, family in families().items():
        file = SOURCES / kind.removesuffix("_text").replace("-", "_") / "modeling_x.py"
        for path in sorted(file.parent.glob("modeling_*.py")) if not family.refused else ():
            if re.search(r"self\.\w+\.weight\b", text := path.read_text(encoding="utf-8")):
                yield text


def linear_children(kind: ast.ClassDef) -> set[str]:
    """Return the attributes that a class sets to a linear layer."""
    return {
        target.attr
        for node in ast.walk(kind)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).rpartition(".")[2].endswith("Linear")
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }


def weights_read(kind: ast.ClassDef) -> set[str]:
    """Return the children whose ``weight`` a method of a class computes with."""
    asked = {
        id(node.value) for node in ast.walk(kind) if isinstance(node, ast.Attribute) and node.attr in ASKED
    }
    return {
        node.value.attr
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute) and node.attr == "weight" and isinstance(node.ctx, ast.Load)
        if isinstance(node.value, ast.Attribute) and id(node) not in asked
        if isinstance(node.value.value, ast.Name) and node.value.value.id == "self"
    }


def test_every_linear_layer_whose_weight_its_parent_reads_is_known() -> None:
    found = {
        (kind.name, child)
        for text in sources()
        for kind in ast.parse(text).body
        if isinstance(kind, ast.ClassDef) and not re.search("Model|ForCausalLM", kind.name)
        for child in weights_read(kind) & linear_children(kind)
    }
    listed = {(kind, child) for kind, those in READ_BY_PARENT.items() for child in those}
    assert found - SLOW == listed - {("MultiheadAttention", "out_proj")}  # which is torch's class


@pytest.mark.parametrize("kind", ["nemotron_h", "zamba2"])
def test_all_linear_leaves_out_what_no_adapter_reaches(kind: str) -> None:
    """peft refused the whole for ``out_proj``, and took Zamba 2's layer 0 for its list's linear layer 0."""
    source = Source(config=tiny_config(kind))
    linear = trunk_linears(HFModelFactory(source)().hf)
    module = HFModelFactory(source, adapter=AdapterSpec(r=4, alpha=8, target_modules=("all-linear",)))()
    adapted = {name for name, _ in module.plain_named_parameters() if ".lora_A" in name}
    assert adapted and not any(".out_proj." in name for name in adapted)
    assert [beyond.rpartition(".")[2] for beyond in out_of_reach(module.hf)] == ["out_proj"]
    assert all(any(f".{name}.lora_A" in one for one in adapted) for name in linear)
