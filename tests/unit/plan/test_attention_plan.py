"""What the plan says of attention's kernel: newer flash kernels by card and package, and the bytes of scores
that no kernel computes by blocks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.plan.cost.from_plan import predicted_plan
from paceline.plan.features.attention import choose_kernel
from paceline.plan.hardware import device_files
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.family import families
from paceline.plan.model.kernels import (
    PADDED_SDPA,
    VARLEN_FLASH,
    AttentionCall,
    flash_version,
    has_dropout,
)
from paceline.plan.model.model_catalogue import named_config
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import Plan, Precision
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan


@pytest.mark.parametrize(
    ("capability", "installed", "width", "version"),
    [
        (9.0, ("FA3", "FA4"), 128, "FA3"),
        (9.0, ("FA4",), 128, "FA4"),
        (9.0, ("FA3",), 256, "FA3"),
        (9.0, ("FA4",), 136, ""),
        (10.0, ("FA3", "FA4"), 64, "FA4"),
        (10.3, ("FA4",), 64, "FA4"),
        (10.0, ("FA3",), 64, ""),
        (8.0, ("FA3", "FA4"), 128, ""),
        (12.0, ("FA3", "FA4"), 128, ""),
        (None, ("FA3", "FA4"), 128, ""),
        (9.0, (), 128, ""),
    ],
)
def test_a_newer_flash_kernel_needs_its_package_and_its_card(
    capability: float | None, installed: tuple[str, ...], width: int, version: str
) -> None:
    assert flash_version(capability, installed, AttentionCall(width, width)) == version


def test_packages_are_found_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_files.flash_packages() == ()
    fails = "raise ImportError\n"
    (tmp_path / "flash_attn_interface.py").write_text(fails)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert device_files.flash_packages() == ("FA3",)
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text(fails)
    assert device_files.flash_packages() == ("FA3",)
    (tmp_path / "flash_attn" / "cute" / "interface.py").write_text(fails)
    assert device_files.flash_packages() == ("FA3", "FA4")


@pytest.mark.parametrize("missing", ["triton", "compiler", "headers", ""])
def test_what_triton_lacks_is_named(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").write_text("")
    monkeypatch.setattr(device_files.util, "find_spec", lambda name: None if missing == "triton" else name)
    monkeypatch.setattr(device_files.shutil, "which", lambda name: None if missing == "compiler" else name)
    where = tmp_path / "none" if missing == "headers" else tmp_path
    monkeypatch.setattr(device_files.sysconfig, "get_path", lambda name: str(where))
    words = {"triton": "Triton", "compiler": "compiler", "headers": "Python.h", "": ""}
    said = device_files.triton_obstacle()
    assert words[missing] in said and bool(said) == bool(missing)


def _plan(card: str, precision: str = "auto", length: int = 4096, **changed: Any) -> tuple[Plan, Any]:
    config = Config.model_validate(
        {
            "model": {"config": dict(named_config("gemma-2-2b")), "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": length},
            "training": {
                "distributed_strategy": "single",
                "mixed_precision": precision,
                "per_device_train_batch_size": 2,
            },
            "lora": {"r": 4},
        }
    )
    hardware = replace(cluster_of("1x" + card).hardware(), packages=("peft",), **changed)
    return make_plan(Job(config, hardware, world_size=1, launcher="single", run_dir="none")), hardware


def _reason(plan: Plan) -> str:
    [found] = [d.reason for d in plan.decisions if d.subject == "model.attn_implementation"]
    return found


def test_scores_that_no_kernel_computes_by_blocks_are_in_the_plans_memory() -> None:
    kernel, hardware = _plan("H100", length=2048)
    scores, without = _plan("H100", length=2048, uncompiled="Triton is not installed")
    assert not kernel.whole_scores and scores.whole_scores
    assert "256.00 MiB a layer for a document of 2,048 tokens" in _reason(scores)
    few, more = (predicted_plan(p, h).peak for p, h in ((kernel, hardware), (scores, without)))  # type: ignore[union-attr]
    a_layer = 8 * 8 * 2048 * 2048 * 2  # bytes, heads, one document a row, two rows
    assert more.attention - few.attention == pytest.approx((26 + 1) * a_layer)
    assert Plan.from_json(scores.to_json()).whole_scores


def test_the_plan_names_the_newer_kernel_where_flash_runs() -> None:
    from paceline.plan.features.attention import choose_kernel

    plan, hardware = _plan("H100", length=1024, flash_packages=("FA3",))
    assert plan.flash == ""  # capped scores: another kernel
    found = choose_kernel(hardware, plan.precision, None)
    assert found.flash == "FA3" and "FlashAttention-3" in found.reason
    assert choose_kernel(replace(hardware, capability=8.0), plan.precision, None).flash == ""


def test_families_that_drop_weights_of_attention_by_default_are_known() -> None:
    """The plan named the flash kernel for GPT-2, which does not drop: another one ran."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    wrong = {}
    for kind in (kind for kind, family in families().items() if family.trained):
        values = CONFIG_MAPPING[kind]().to_dict()
        drops = any(
            value
            for name, value in values.items()
            if "att" in name and "drop" in name and isinstance(value, float)
        )
        if not has_dropout(values) == has_dropout({"model_type": kind}) == drops:
            wrong[kind] = drops
    assert wrong == {}


@pytest.mark.parametrize(
    ("given", "kernel"),
    [({}, PADDED_SDPA), ({"attn_pdrop": 0.0}, VARLEN_FLASH), ({"attn_pdrop": 0.2}, PADDED_SDPA)],
)
def test_the_kernel_of_a_model_with_dropout_is_one_that_drops(given: dict[str, Any], kernel: str) -> None:
    shape = shape_from_config({"model_type": "gpt2", **given})
    precision = Precision("bfloat16", "float32", "float32", False, "")
    chosen = choose_kernel(cluster_of("H100").hardware(), precision, shape)
    assert chosen.name == kernel and ("dropout" in chosen.reason) is (kernel == PADDED_SDPA)
