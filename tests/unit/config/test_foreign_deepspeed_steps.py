"""Optimizer, schedule, precision and clipping of DeepSpeed's JSON: what is there, and what an absent key
means.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import key_probes
import pytest

from paceline.core.diagnostics import Severity

Read = Callable[..., Any]
AUTO = {"bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}


@pytest.fixture
def read(load: Any, tmp_path: Path) -> Read:
    """Loads a config whose only setting is this DeepSpeed file (and more YAML)."""

    def run(content: Any, more: str = "") -> Any:
        (tmp_path / "ds.json").write_text(json.dumps({**AUTO, **content}, indent=2), encoding="utf-8")
        return load(f"training:\n  deepspeed: ds.json\n{more}")

    return run


@pytest.fixture
def wrong(refuse: Any, tmp_path: Path) -> Read:
    """(code, what is named) of everything that is refused."""

    def run(content: Any, more: str = "") -> list[tuple[str, str]]:
        (tmp_path / "ds.json").write_text(json.dumps({**AUTO, **content}, indent=2), encoding="utf-8")
        found = refuse(f"training:\n  deepspeed: ds.json\n{more}").diagnostics
        return [(item.code, item.found) for item in found]

    return run


def told(loaded: Any, severity: Severity | None = None) -> dict[str, str]:
    notes = [n for n in loaded.notes if n.code == "config.foreign_not_taken"]
    return {n.found: n.what for n in notes if severity in (None, n.severity)}


def optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def schedule(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        (optimizer("AdamW"), "learning_rate", 1e-3),
        (optimizer("Adam", betas=[0.9, 0.95]), "learning_rate", 1e-3),
        (optimizer("SGD"), "learning_rate", 1e-3),
        (optimizer("Adagrad"), "learning_rate", 1e-2),
        (optimizer("RMSprop"), "learning_rate", 1e-2),
        (optimizer("OneBitAdam"), "learning_rate", 1e-3),
        (optimizer("AdamW", torch_adam=True), "weight_decay", 0.01),
        ({**optimizer("AdamW", lr=3e-4), **schedule("WarmupDecayLR")}, "learning_rate", 1e-3),
        ({**optimizer("AdamW", lr=3e-4), **schedule("WarmupLR")}, "learning_rate", 3e-4),
        ({**optimizer("AdamW"), **schedule("WarmupLR")}, "learning_rate", 1e-3),
        ({**optimizer("AdamW", lr=3e-4), **schedule("WarmupCosineLR")}, "learning_rate", 3e-4),
        (schedule("LRRangeTest"), "learning_rate", 1e-3),
        (schedule("WarmupLR"), "warmup_steps", 1000.0),
    ],
)
def test_what_is_left_out_is_what_deepspeed_takes(read: Read, written: Any, key: str, value: float) -> None:
    loaded = read(written)
    assert getattr(loaded.config.training, key) == value
    source = loaded.provenance[f"training.{key}"]
    assert source.layer == "foreign file" and source.file.endswith("ds.json")
    other = read(written, f"  {key}: 0.5\n")
    assert getattr(other.config.training, key) == 0.5


def test_auto_is_the_training_sections(read: Read) -> None:
    written = {
        **optimizer("AdamW", lr="auto"),
        **schedule("WarmupDecayLR", warmup_max_lr="auto", warmup_num_steps="auto"),
    }
    t = read(written).config.training
    assert (t.learning_rate, t.warmup_steps, t.lr_scheduler_type) == (5e-5, 0.0, "warmup_decay_lr")


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "momentum=0.9,nesterov=True"),
        ("SGD", {"lr": 0.1, "dampening": 0.1, "momentum": 0.9}, "dampening=0.1,momentum=0.9"),
        ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "eps": 1e-6}, "lr_decay=0.01,eps=1e-06"),
        ("RMSprop", {"lr": 0.1, "alpha": 0.9, "centered": True}, "alpha=0.9,centered=True"),
    ],
)
def test_parameters_that_change_the_update_are_carried(
    read: Read, kind: str, params: Any, expected: str
) -> None:
    loaded = read(optimizer(kind, **params))
    assert loaded.config.training.optim_args == expected
    assert not [what for what in told(loaded).values() if "same" in what]


def test_what_is_carried_reaches_torchs_optimizer(read: Read) -> None:
    loaded = read(optimizer("SGD", lr=0.1, momentum=0.9, nesterov=True))
    base = key_probes.Config.from_json(key_probes.plain({}))
    whole = loaded.config.model_copy(update={"model": base.model, "data": base.data})
    assert key_probes.plan_of(whole).optimizer.args == {"momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize(
    ("kind", "params", "code"),
    [
        ("AdamW", {"rho": 0.1}, "zero.optimizer_params"),
        ("SGD", {"lookahead": 5}, "zero.optimizer_params"),
        ("SGD", {"momentum": "much"}, "config.type"),
        ("Adafactor", {"lr": 0.1}, "zero.optimizer"),
        ("Adam", {"amsgrad": True}, "zero.optimizer"),
        ("Adam", {"adam_w_mode": False, "weight_decay": 0.1}, "zero.optimizer"),
    ],
)
def test_a_parameter_that_cannot_be_had_is_refused(wrong: Read, kind: str, params: Any, code: str) -> None:
    assert [found for found, _ in wrong(optimizer(kind, **params))] == [code]


def test_parameters_that_choose_code_are_said_to(read: Read) -> None:
    loaded = read(optimizer("AdamW", lr=1e-4, torch_adam=True, weight_decay=0.1, adam_w_mode=False))
    found = told(loaded)
    assert "same update" in found["optimizer.params.torch_adam"]
    assert "no effect" in found["optimizer.params.adam_w_mode"]
    assert "not to biases and norms" in found["optimizer.params.weight_decay"]


def test_transformers_name_of_an_optimizer_is_taken(read: Read) -> None:
    loaded = read(optimizer("adamw_torch_fused", lr=1e-4))
    assert loaded.config.training.optim == "adamw_torch_fused"
    assert "a Transformers name" in told(loaded)["optimizer.type"]


def test_the_yamls_optimizer_does_not_get_the_files_parameters(read: Read) -> None:
    loaded = read(optimizer("SGD", lr=0.1, momentum=0.9), "  optim: adamw_torch\n")
    assert loaded.config.training.optim_args is None
    assert "training.optim selects another" in told(loaded)["optimizer.params.momentum"]


@pytest.mark.parametrize(
    ("written", "name", "kwargs"),
    [
        (
            schedule("WarmupLR", warmup_min_lr=1e-6, warmup_type="linear"),
            "warmup_lr",
            {"warmup_min_lr": 1e-6, "warmup_type": "linear"},
        ),
        (schedule("WarmupDecayLR", total_num_steps=500), "warmup_decay_lr", {"total_num_steps": 500}),
        (schedule("WarmupDecayLR", total_num_steps="auto"), "warmup_decay_lr", {}),
        (schedule("WarmupCosineLR", cos_min_ratio=0.1), "warmup_cosine_lr", {"cos_min_ratio": 0.1}),
        (schedule("WarmupLR", warmup_type="cubic"), "warmup_lr", {"warmup_type": "log"}),
        (
            schedule("OneCycle", cycle_min_lr=0, cycle_max_lr=1e-3, cycle_momentum=False),
            "one_cycle",
            {"cycle_min_lr": 0},
        ),
        (
            schedule("LRRangeTest", lr_range_test_step_size=10),
            "lr_range_test",
            {"lr_range_test_step_size": 10},
        ),
    ],
)
def test_a_schedule_is_deepspeeds_own(read: Read, written: Any, name: str, kwargs: Any) -> None:
    t = read(written).config.training
    assert (t.lr_scheduler_type, t.lr_scheduler_kwargs) == (name, kwargs)


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (schedule("OneCycle", cycle_min_lr=0, cycle_max_lr=1e-3), "zero.scheduler"),
        (schedule("OneCycle", cycle_momentum=False), "config.value"),
        (schedule("WarmupLR", warmup_steps=10), "zero.scheduler"),
        (schedule("WarmupLR", warmup_min_lr="low"), "config.type"),
        (schedule("StepLR", step_size=10), "zero.scheduler"),
    ],
)
def test_a_schedule_that_cannot_be_had_is_refused(wrong: Read, written: Any, code: str) -> None:
    assert {found for found, _ in wrong(written)} == {code}


def test_a_rate_that_has_no_effect_is_said(read: Read) -> None:
    written = {**optimizer("AdamW", lr=1e-3), **schedule("WarmupLR", warmup_max_lr=2e-4, warmup_num_steps=10)}
    loaded = read(written)
    assert loaded.config.training.learning_rate == 2e-4
    assert "no effect" in told(loaded)["optimizer.params.lr"]


def test_the_yamls_schedule_runs_and_the_files_options_are_left(read: Read) -> None:
    loaded = read(
        schedule("WarmupLR", warmup_min_lr=1e-6, warmup_num_steps=7), "  lr_scheduler_type: cosine\n"
    )
    t = loaded.config.training
    assert (t.lr_scheduler_type, t.lr_scheduler_kwargs, t.warmup_steps) == ("cosine", {}, 7)
    assert {"scheduler.type", "scheduler.params.warmup_min_lr"} <= set(told(loaded))


@pytest.mark.parametrize(
    ("content", "more", "expected"),
    [
        ({}, "", "no"),
        ({"fp16": {}}, "", "no"),
        ({"amp": {"enabled": False}}, "", "no"),
        ({"torch_autocast": {"dtype": "bfloat16"}}, "", "no"),
        ({"bf16": {"enabled": "auto"}}, "", "auto"),
        ({"bf16": {"enabled": False}}, "", "no"),
        ({}, "  mixed_precision: auto\n", "auto"),
        ({}, "  bf16: true\n", "bf16"),
    ],
)
def test_no_precision_is_float32_as_in_deepspeed(
    load: Any, tmp_path: Path, content: Any, more: str, expected: str
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **content}))
    loaded = load(f"training:\n  deepspeed: ds.json\n{more}")
    assert loaded.config.training.mixed_precision == expected
    said = [n for n in loaded.notes if "no precision block" in n.what]
    asked = {"fp16", "bf16"} & set(content)
    assert len(said) == (expected == "no" and not asked)


@pytest.mark.parametrize(
    "key",
    [
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "train_batch_size",
        "gradient_clipping",
    ],
)
def test_a_tuning_space_is_known_at_the_top_level_too(wrong: Read, key: str) -> None:
    assert [code for code, _ in wrong({key: [1, 4, 16]})] == ["zero.tuning_space"]


def test_nothing_says_both_that_a_total_stays_and_that_another_runs(read: Read) -> None:
    from paceline.config.backend_files.deepspeed.deepspeed_file import batch_of

    loaded = read({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})
    t = loaded.config.training
    note = told(loaded)["train_batch_size"]
    assert "stays" not in note and "nearest smaller product" in note
    assert batch_of(t.deepspeed, 4, 1, 2) == (
        4,
        1,
        (
            "the DeepSpeed file's 10 rows per step over 2 ranks: micro-batch 4, accumulation 1; 10 does not"
            " divide evenly, so 8 rows are used"
        ),
    )
