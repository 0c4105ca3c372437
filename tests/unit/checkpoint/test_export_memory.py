"""An export holds a few tensors at a time, and finds out what differs without loading the model."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import OneRank, whole
from safetensors.torch import save_file

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export import reload_check
from paceline.checkpoint.export.hf_export import export_hf
from paceline.config.schema import Config
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import to_json
from paceline.protocols.model import BuildOptions
from tests.unit.models.model_families import Source
from tests.unit.models.tiny_families import tiny_config

MIB = 2**20
WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
# the largest tensors are 40 MiB: freed memory of that size goes back to the system
LLAMA = {**WIDE, "model_type": "llama", "hidden_size": 512, "intermediate_size": 20480, "vocab_size": 64}
MOE = {
    **WIDE,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "vocab_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 1280,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as one that is too large to be loaded back."""
    monkeypatch.setattr(reload_check, "LOADED_WHOLE", 0)


@pytest.fixture
def mapped() -> Iterator[None]:
    """Every tensor of a MiB is mapped alone, so freed memory is not counted: the heap would keep holes."""
    libc, threshold = ctypes.CDLL(None), -3  # M_MMAP_THRESHOLD
    libc.mallopt(threshold, MIB)
    libc.malloc_trim(0)
    yield
    libc.mallopt(threshold, 32 * MIB)


def peak_since(own: int | None = None) -> int:
    """Bytes of this process at their peak; without ``own`` the count begins anew."""
    if own is None:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 - (own or 0)


def save(run: RunDir, tensors: Iterator[tuple[str, torch.Tensor]], state: Any, files: Any) -> Path:
    sides = {name: json.dumps(value).encode() for name, value in files.items()}
    return Checkpointer(run, OneRank()).save(1, [whole(n, t) for n, t in tensors], state, sides)


def model(run: RunDir, config: dict[str, Any]) -> Path:
    build = HFModelFactory(Source(config=config))
    named = build(BuildOptions(device=torch.device("meta"))).plain_named_parameters()
    made = ((n, torch.rand(p.shape)) for n, p in named)
    return save(run, made, {}, {"config.json": build.saved_config})


def adapted(run: RunDir, base: Path, config: dict[str, Any], **spec: Any) -> Path:
    """Write a base in bf16 and a checkpoint of an adapter that was trained on it."""
    plain = HFModelFactory(Source(config=config))
    named = plain(BuildOptions(device=torch.device("meta"))).hf.named_parameters()
    base.mkdir()
    tensors = {n: torch.rand(p.shape, dtype=torch.bfloat16) for n, p in named}
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    (base / "config.json").write_text(json.dumps({**plain.saved_config, "dtype": "bfloat16"}))
    given = AdapterSpec(r=8, alpha=16.0, target_modules=("all-linear",), **spec)
    build = HFModelFactory(Source(name_or_path=str(base)), adapter=given)
    module = build(BuildOptions(device=torch.device("cpu"), by_slices=True))
    assert module.adapter is not None
    trained = [(n, p.shape) for n, p in module.plain_named_parameters() if p.requires_grad]
    state = {
        "adapter": to_json(given),
        "base_model": dict(module.adapter.base),
        "config": Config.from_json({"model": {"name_or_path": str(base)}}).to_json(),
    }
    files = {"config.json": build.saved_config, "adapter_config.json": dict(module.adapter.peft)}
    return save(run, ((n, torch.rand(s)) for n, s in trained), state, files)


@pytest.mark.parametrize("case", ["mixture", "merged"])
def test_the_peak_does_not_grow_with_the_model(
    run: RunDir, tmp_path: Path, in_parts: None, mapped: None, case: str
) -> None:
    """Of a model of 240 MiB and more: two of its tensors of 40 MiB, and pieces."""
    if case == "merged":
        small = adapted(
            RunDir.at(tmp_path / "small"), tmp_path / "small_base", {**LLAMA, "intermediate_size": 8}
        )
        path = adapted(run, tmp_path / "base", LLAMA)
    else:
        small = model(RunDir.at(tmp_path / "small"), {**MOE, "moe_intermediate_size": 8})
        path = model(run, MOE)
    export_hf(small, tmp_path / "first", merge=True)  # imports, threads, classes
    before = peak_since()
    report = export_hf(path, tmp_path / "out", merge=True)
    largest = 40 * MIB
    assert report.load_checked and report.num_bytes > 5.5 * largest
    assert (peak := peak_since(before)) < 2 * largest + 64 * MIB, peak // MIB


FAMILIES = ("deepseek_v3", "qwen3_moe", "gpt2", "qwen3_5_text")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_differs_is_found_in_parts(
    run: RunDir, tmp_path: Path, in_parts: None, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = HFModelFactory(Source(config=tiny_config(family)))
    module = build()
    shards = [whole(n, p.detach()) for n, p in module.plain_named_parameters()]
    shards += [whole(n, b, "buffer") for n, b in module.plain_named_buffers()]
    files = {"config.json": json.dumps(build.saved_config).encode()}
    path = Checkpointer(run, OneRank()).save(1, shards, {}, files)
    assert export_hf(path, tmp_path / "out", max_shard_bytes=8000).load_checked

    def one_byte(stage: Path, *given: Any) -> None:
        write(stage, *given)
        file = sorted(stage.glob("*.safetensors"))[-1]
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(bytes(data))

    write = export_hf.__globals__["write_weights"]
    monkeypatch.setitem(export_hf.__globals__, "write_weights", one_byte)
    with pytest.raises(CheckpointError, match=r"export.load_check[\s\S]*different"):
        export_hf(path, tmp_path / "broken", max_shard_bytes=8000)
    assert not (tmp_path / "broken").exists()


def test_a_merge_from_the_files_is_that_of_the_whole_base(
    run: RunDir, tmp_path: Path, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    path = adapted(run, tmp_path / "base", {**tiny_config("llama")}, modules_to_save=("lm_head",))
    export_hf(path, tmp_path / "parts", merge=True)
    monkeypatch.setattr("paceline.models.loading.weights_source.folder_slices", lambda *_: "not in parts")
    export_hf(path, tmp_path / "whole", merge=True, load_back=False)
    parts, at_once = (load_file(tmp_path / name / "model.safetensors") for name in ("parts", "whole"))
    assert set(parts) == set(at_once) and all(torch.equal(parts[n], at_once[n]) for n in parts)
