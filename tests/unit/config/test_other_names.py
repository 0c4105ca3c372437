"""The tables of other people's names, entry by entry: none of them loses part of its meaning without a
word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import peft
import pytest

from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.keys.valid_keys import RECOGNISED
from paceline.config.schema import field_of
from paceline.core.diagnostics import Severity

# Keys of which any value passes with a note: what each would choose is done in any case, or belongs to a
# feature that is refused by its own key. A key that asks for something else than what happens belongs to
# those that warn or refuse.
ANY_VALUE = {
    "done in any case": {
        "fp16_backend",
        "half_precision_backend",
        "use_liger_kernel",
        "enable_liger_kernel",
        "log_on_each_node",
        "log_level_replica",
        "include_num_input_tokens_seen",
        "include_tokens_per_second",
        "disable_tqdm",
        "prediction_loss_only",
        "eval_do_concat_batches",
        "eval_accumulation_steps",
        "batch_eval_metrics",
        "enable_jit_checkpoint",
        "restore_callback_states_from_checkpoint",
        "remove_unused_columns",
        "label_names",
        "length_column_name",
        "skip_memory_metrics",
        "do_eval",
        "local_rank",
        "logging_dir",
        "use_mps_device",
        "include_for_metrics_inputs",
        "plot_loss",
        "overwrite_cache",
        "preprocessing_batch_size",
        "upcast_layernorm",
        "trainer_backend",
        "ray_scope",
    },
    "of a feature that is refused or off": {
        "liger_kernel_config",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_revision",
        "push_to_hub_model_id",
        "push_to_hub_token",
        "push_to_hub_organization",
        "buffer_size",
        "loraplus_lr_embedding",
        "freeze_trainable_layers",
        "freeze_trainable_modules",
        "freeze_extra_modules",
        "dataloader_persistent_workers",
        "dataloader_multiprocessing_context",
        "dataloader.persistent_workers",
    },
}

Load = Callable[..., Any]


def test_every_key_that_any_value_of_passes_has_been_looked_at() -> None:
    found = {name for name, key in RECOGNISED.items() if key.any_value}
    reviewed = set().union(*ANY_VALUE.values())
    assert found <= reviewed, f"say what its values would choose: {sorted(found - reviewed)}"


def test_every_field_of_pefts_config_is_a_key_or_named_under_lora(refuse: Load) -> None:
    for name in (field.name for field in dataclasses.fields(peft.LoraConfig)):
        value = "CAUSAL_LM" if name == "task_type" else "{a: 1}"
        for section in ("lora", "model") if name == "revision" else ("lora",):
            found = refuse(f"{section}: {{{name}: {value}}}\ntraining: {{seed: no}}").diagnostics
            unknown = [d for d in found if d.code == "config.unknown_key" and "belongs under" not in d.hint]
            assert not unknown, name


def test_every_alias_leads_to_a_field() -> None:
    special = {"lora", "training.fp16", "training.bf16", "data.max_rows"}
    for name, alias in {**ALIASES, **SECTION_ALIASES}.items():
        assert alias.to in special or field_of(alias.to) is not None, name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dataloader: {shuffle: false}", "shuffle"),
        ("device_ids: [0, 1]", "device_ids"),
        ("template: llama3", "template"),
        ("trackio_space_id: mine", "TRACKIO_SPACE_ID"),
        ("tokenized_path: /data/tokens", "tokenized_path"),
        ("debug: underflow_overflow", "debug"),
    ],
)
def test_what_asks_for_something_else_warns(load: Load, text: str, found: str) -> None:
    warnings = [n.what for n in load(f"training:\n  {text}\n").notes if n.severity is Severity.WARNING]
    assert warnings and found in warnings[0]
    assert not [
        n for n in load("training:\n  dataloader: {shuffle: true}\n").notes if n.severity is Severity.WARNING
    ]


@pytest.mark.parametrize(
    ("level", "severity"),
    [("O1", "note"), ("o1", "note"), ("O0", "note"), ("O2", "warning"), ("O3", "warning")],
)
def test_a_level_of_apex_is_said(load: Load, level: str, severity: str) -> None:
    (said,) = [
        n
        for n in load(f"training:\n  fp16: true\n  fp16_opt_level: {level}\n").notes
        if "fp16_opt_level" in n.what
    ]
    assert (said.severity.value, said.where.rpartition(":")[2]) == (severity, "3")


@pytest.mark.parametrize(
    ("written", "precision"),
    [
        ("fp16: true\n  fp16_opt_level: O0", "no"),
        ("fp16: true\n  fp16_opt_level: O1", "fp16"),
        ("bf16: true\n  fp16_opt_level: o0", "bf16"),
        ("fp16_opt_level: O0", "auto"),
    ],
)
def test_apex_level_o0_is_float32(load: Load, written: str, precision: str) -> None:
    assert load(f"training:\n  {written}\n").config.training.mixed_precision == precision


@pytest.mark.parametrize("level", ["O7", "'1'", "2", "full", "true"])
def test_no_level_of_apex_is_refused(refuse: Any, level: str) -> None:
    (found,) = refuse(f"training:\n  fp16: true\n  fp16_opt_level: {level}\n").diagnostics
    assert found.code == "config.not_supported" and found.where.endswith(":3")


def test_an_optimizer_that_is_gone_is_refused_by_either_name(refuse: Any) -> None:
    for key in ("optim", "optimizer"):
        (found,) = refuse(f"training:\n  {key}: adamw_hf\n").diagnostics
        assert "adamw_torch" in found.hint or "adamw_torch" in found.what


def test_packing_without_neat_packing_is_packing(load: Load) -> None:
    assert load("packing: true\nneat_packing: false\n").config.data.packing is True
    assert load("packing: false\n").config.data.packing is False
    assert load("neat_packing: true\n").config.data.packing is True


def test_processes_of_all_machines_are_not_those_of_one(load: Load, refuse: Any) -> None:
    assert load("launch: {num_processes: 8}\n").config.launch.nproc == 8
    text = "launch: {num_processes: 8, nnodes: 2, master_port: 29500, master_addr: gpu0}\n"
    (found,) = refuse(text).diagnostics
    assert found.code == "config.value" and found.hint == "launch.nproc: 4"
    fine = text.replace("num_processes: 8", "nproc_per_node: 4")
    assert load(fine).config.launch.nproc == 4


def test_the_type_of_weights_is_said_to_be_that_of_reading(load: Load) -> None:
    loaded = load("model: {torch_dtype: bfloat16}\n")
    assert loaded.config.model.dtype == "bfloat16"
    assert [n for n in loaded.notes if "kept in float32" in n.hint]
