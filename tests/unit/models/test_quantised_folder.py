"""Folders with quantized weights are read as plain ones, by formulas held to independent ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import Source, build_family
from safetensors.torch import load_file, save_file
from test_composite import trained_checkpoint
from tiny_families import tiny_config
from torch import Tensor

from paceline.checkpoint.export.hf_export import export_hf
from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.loading import dequantize
from paceline.models.loading.dequantize import by_blocks, mxfp4
from paceline.models.loading.safetensors_files import OpenedFiles
from paceline.models.loading.sharded_loading import FolderSlices
from paceline.models.loading.weights_source import READ_IN_PARTS
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import AdapterSpec
from paceline.plan.workload.startup_memory import UNPACKING
from paceline.protocols.model import BuildOptions

Tensors = dict[str, Tensor]
FP8 = torch.float8_e4m3fn


def _plain(folder: Path, kind: str, **sizes: int) -> Tensors:
    config = {**tiny_config(kind), **sizes}
    hf = HFModelFactory(Source(config=config))().hf.bfloat16()
    hf.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def _write(folder: Path, tensors: Tensors, settings: dict[str, Any]) -> None:
    save_file(
        {n: t.contiguous() for n, t in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


def _projections(tensors: Tensors) -> list[str]:
    return [n for n in tensors if n.endswith("_proj.weight")]


def _fp8_blocks(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    """Blocks of 20, the last ones cut; the product is Transformers'."""
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    for name in _projections(tensors):
        out, into = tensors[name].shape
        weight = (tensors[name].float() * 30).to(FP8)
        scale = torch.rand(-(-out // 20), -(-into // 20)) / 30
        expected[name] = _dequantize_fp8_weight(weight, scale, [20, 20], torch.float32)
        tensors |= {name: weight, f"{name}_scale_inv": scale}
    return {"quant_method": "fp8", "weight_block_size": [20, 20]}


def _fp8_whole(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    for name in _projections(tensors):
        weight, scale = (tensors[name].float() * 30).to(FP8), torch.rand(()) / 30
        expected[name] = weight.float() * float(scale)
        module = name.removesuffix("weight")
        tensors |= {name: weight, f"{name}_scale_inv": scale, f"{module}activation_scale": torch.ones(())}
    return {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}


def _fp8_rows(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    """compressed-tensors, a scale a row."""
    for name in _projections(tensors):
        weight, scale = (
            (tensors[name].float() * 30).to(FP8),
            torch.rand(len(tensors[name]), 1).bfloat16() / 30,
        )
        expected[name] = torch.stack([row.float() * float(s) for row, s in zip(weight, scale, strict=True)])
        tensors |= {name: weight, f"{name}_scale": scale}
    return _group({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized")


def _group(weights: dict[str, Any], form: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def _words(numbers: list[int], bits: int) -> list[int]:
    """Numbers in 32-bit words, lowest bits first, as Python's integers."""
    many = 32 // bits
    words = [
        sum(number << (bits * place) for place, number in enumerate(numbers[start : start + many]))
        for start in range(0, len(numbers), many)
    ]
    return [word - (1 << 32) if word >= 1 << 31 else word for word in words]


def _packed(numbers: Tensor, bits: int, dim: int) -> Tensor:
    rows = numbers.movedim(dim, -1)
    words = [_words(row, bits) for row in rows.tolist()]
    return torch.tensor(words, dtype=torch.int32).movedim(-1, dim)


def _gptq(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    for name in _projections(tensors):
        out, into = tensors.pop(name).shape
        groups, base = into // 16, name.removesuffix("weight")
        numbers, zeros = torch.randint(0, 16, (into, out)), torch.randint(0, 15, (groups, out))
        scales, order = torch.rand(groups, out).half() / 30, torch.randint(0, groups, (into,))
        expected[name] = torch.tensor(
            [
                [
                    float(scales[order[i], o]) * (int(numbers[i, o]) - int(zeros[order[i], o]) - 1)
                    for i in range(into)
                ]
                for o in range(out)
            ]
        )
        tensors |= {f"{base}qweight": _packed(numbers, 4, 0), f"{base}qzeros": _packed(zeros, 4, 1)}
        tensors |= {f"{base}scales": scales, f"{base}g_idx": order.int()}
    return {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}


def _awq(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    def pack(numbers: Tensor) -> Tensor:  # AutoAWQ: the word of eight outputs holds 0 2 4 6 1 3 5 7
        order = [
            8 * start + place for start in range(numbers.shape[1] // 8) for place in (0, 2, 4, 6, 1, 3, 5, 7)
        ]
        return _packed(numbers[:, order], 4, 1)

    for name in _projections(tensors):
        out, into = tensors.pop(name).shape
        groups, base = into // 16, name.removesuffix("weight")
        numbers, zeros = torch.randint(0, 16, (into, out)), torch.randint(0, 16, (groups, out))
        scales = torch.rand(groups, out).half() / 30
        rows = [(numbers[i] - zeros[i // 16]) * scales[i // 16].float() for i in range(into)]
        expected[name] = torch.stack(rows, dim=1)
        tensors |= {f"{base}qweight": pack(numbers), f"{base}qzeros": pack(zeros), f"{base}scales": scales}
    return {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}


def _pack(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    """compressed-tensors, four bits in words, a scale and a zero for each 16 inputs."""
    for name in _projections(tensors):
        out, into = tensors.pop(name).shape
        numbers, zeros = torch.randint(-8, 8, (out, into)), torch.randint(-8, 8, (out, into // 16))
        scale = torch.rand(out, into // 16).bfloat16() / 30
        columns = [(numbers[:, i] - zeros[:, i // 16]) * scale[:, i // 16].float() for i in range(into)]
        expected[name] = torch.stack(columns, dim=1)
        tensors |= {f"{name}_packed": _packed(numbers + 8, 4, 1), f"{name}_scale": scale}
        tensors |= {
            f"{name}_zero_point": _packed(zeros + 8, 4, 0),
            f"{name}_shape": torch.tensor([out, into]),
        }
    return _group({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}, "pack-quantized")


def _mxfp4(tensors: Tensors, expected: Tensors) -> dict[str, Any]:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, into, out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, out, -(-into // 32), 16), dtype=torch.uint8)
        scales = torch.randint(118, 124, blocks.shape[:-1], dtype=torch.uint8)
        expected[name] = convert_moe_packed_tensors(blocks, scales)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


WAYS: dict[str, Callable[[Tensors, Tensors], dict[str, Any]]] = {
    "fp8": _fp8_blocks,
    "fp8 whole": _fp8_whole,
    "compressed-tensors rows": _fp8_rows,
    "compressed-tensors words": _pack,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
}


def _folder(way: str, folder: Path) -> Tensors:
    """Write a folder of quantized weights; return what they are as plain ones, in bfloat16."""
    torch.manual_seed(1)
    if way == "mxfp4":  # blocks of 32 inputs
        tensors = _plain(folder, "gpt_oss", intermediate_size=64)
    else:
        tensors = _plain(folder, "qwen3")
    expected = dict(tensors)
    _write(folder, tensors, WAYS[way](tensors, expected))
    return {name: t.bfloat16() for name, t in expected.items()}


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_those_of_an_independent_formula(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequantize, "AT_ONCE", 32)  # less than a weight's inputs and outputs
    expected = _folder(way, tmp_path)
    build = HFModelFactory(Source(name_or_path=str(tmp_path)))
    module = build()
    held = dict(module.hf.named_parameters())
    assert set(held) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(held[name].detach(), tensor.float()), name
    shape = shape_of(ModelSection(name_or_path=str(tmp_path)))
    assert shape is not None and shape.quantised == way.split()[0]
    ends = ("gate_up_proj", "down_proj") if way == "mxfp4" else "_proj.weight"
    changed = [name for name in expected if name.endswith(ends)]
    assert shape.dequantised_bytes == 2 * sum(expected[n].numel() for n in changed)
    written = load_file(tmp_path / "model.safetensors")
    assert shape.file_bytes == sum(t.nbytes for t in written.values())
    assert "quantized weights read as bfloat16" in module.notes()["tensors"]
    assert "quantization_config" not in build.saved_config


def _words_of(rows: int, columns: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, (rows, columns), dtype=torch.int32)


#: Stored tensors of a weight of N × N (experts: 8 of N / 2 × N / 4), and their settings.
N = 2048
LARGE: dict[str, Callable[[], tuple[Tensors, dict[str, Any]]]] = {
    "fp8": lambda: (
        {"weight": torch.zeros(N, N).to(FP8), "scale": torch.rand(N // 128, N // 128)},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "gptq": lambda: (
        {
            "qweight": _words_of(N // 8, N),
            "qzeros": _words_of(N // 128, N // 8),
            "scales": torch.rand(N // 128, N),
        },
        {"quant_method": "gptq", "bits": 4},
    ),
    "awq": lambda: (
        {
            "qweight": _words_of(N, N // 8),
            "qzeros": _words_of(N // 128, N // 8),
            "scales": torch.rand(N // 128, N),
        },
        {"quant_method": "awq", "bits": 4},
    ),
    "compressed-tensors": lambda: (
        {
            "packed": _words_of(N, N // 8),
            "scale": torch.rand(N, N // 128),
            "zero_point": _words_of(N // 8, N // 128),
            "shape": torch.tensor([N, N]),
        },
        {"quant_method": "compressed-tensors", "num_bits": 4},
    ),
    "compressed-tensors, eight bits": lambda: (
        {
            "weight": torch.zeros(N, N, dtype=torch.int8),
            "scale": torch.rand(N, N // 128),
            "zero_point": torch.zeros(N, N // 128, dtype=torch.int8),
        },
        {"quant_method": "compressed-tensors", "num_bits": 8},
    ),
    "compressed-tensors, blocks": lambda: (
        {"weight": torch.zeros(N, N).to(FP8), "scale": torch.rand(N // 128, N // 128)},
        {"quant_method": "compressed-tensors", "num_bits": 8, "block_structure": [128, 128]},
    ),
    "mxfp4": lambda: (
        {
            "blocks": torch.zeros(8, N // 4, N // 64, 16, dtype=torch.uint8),
            "scales": torch.zeros(8, N // 4, N // 64, dtype=torch.uint8),
        },
        {"quant_method": "mxfp4"},
    ),
}


@pytest.mark.parametrize("way", LARGE)
def test_what_making_a_weight_plain_takes_is_planned(way: str) -> None:
    """The plan counts ``UNPACKING`` times the weight in float32, the result included."""
    stored, settings = LARGE[way]()
    with torch.profiler.profile(profile_memory=True) as profile:
        plain = dequantize.FORMULAS[str(settings["quant_method"])](stored, settings)
    made: Any = profile.profiler
    events = sorted(made.kineto_results.events(), key=lambda event: event.start_ns())
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    peak = max(itertools.accumulate(sizes)) / (4 * plain.numel())
    assert len(sizes) > 2 and 1 <= peak <= UNPACKING + 0.05, peak


COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize("kind", ["row", "group", "block", "whole", "zeros", "group of inputs"])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 200])
def test_some_rows_at_a_time_are_those_of_all_at_once(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randint(-128, 128, (rows, 96), generator=generator).to(torch.int8)
    sizes = {"block": (-(-rows // 20), 4), "whole": (1,), "row": (rows, 1)}.get(kind, (rows, 3))
    parts = {"weight": weight, "scale": torch.rand(*sizes, generator=generator)}
    settings = {**COMPRESSED, "num_bits": 8, **({"block_structure": [20, 24]} if kind == "block" else {})}
    if kind != "whole":
        parts["zero_point"] = torch.randint(-9, 9, sizes, generator=generator).to(torch.int8)
    if kind == "group of inputs":
        parts["g_idx"] = torch.randint(0, 3, (96,), generator=generator)
    formula, made = dequantize.FORMULAS[str(settings["quant_method"])], []
    for at_once in (32, 10_000):
        monkeypatch.setattr(dequantize, "AT_ONCE", at_once)
        made.append(formula(parts, settings))
    assert made[0].shape == weight.shape and torch.equal(*made)


@pytest.mark.parametrize("length", [0, 256, 600])
def test_groups_that_do_not_fit_are_refused(length: int) -> None:
    parts = {"qweight": _words_of(64, 64), "qzeros": _words_of(4, 8), "scales": torch.rand(4, 64)}
    with pytest.raises(ValueError, match="do not fit"):
        dequantize.gptq({**parts, "g_idx": torch.zeros(length, dtype=torch.int32)}, {"bits": 4})
    words = {"packed": _words_of(1, 4), "scale": torch.rand(1), "shape": torch.tensor([300, 32])}
    with pytest.raises(ValueError, match="do not fit"):
        dequantize.compressed(words, {**COMPRESSED, "num_bits": 4})


@pytest.mark.parametrize("way", [*WAYS, "experts"])
def test_a_rank_reads_its_own_part(way: str, tmp_path: Path) -> None:
    """Also of experts that are stacked: only those that it holds are read."""
    if way == "experts":
        tensors = _plain(tmp_path, "qwen3_moe")
        _write(tmp_path, tensors, _fp8_blocks(tensors, {}))
    else:
        _folder(way, tmp_path)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    whole = dict(factory().hf.named_parameters())
    empty = factory(BuildOptions(device=torch.device("cpu"), by_slices=True))
    slices = empty.slices
    assert isinstance(slices, FolderSlices) and empty.notes()["start"] == READ_IN_PARTS
    stacked = 0
    for name, tensor in whole.items():
        first, rows = tensor.shape[0] // 3, tensor.shape[0] - tensor.shape[0] // 3
        block = slices.read(name, (first, *(0,) * (tensor.ndim - 1)), (rows, *tensor.shape[1:]))
        assert torch.equal(block.float(), tensor[first:]), name
        picked = slices.picked(name, tuple(tensor.shape), 7, 5)
        assert torch.equal(picked, tensor.detach().flatten()[::7][:5]), name
        stacked += len(slices.places[name]) > 1
    assert (stacked > 0) == (way == "experts")
    if way == "experts":
        spoilt = load_file(tmp_path / "model.safetensors")
        name = next(n for n in whole if len(slices.places[n]) > 1)
        last = slices.places[name][-1].name
        spoilt |= {last: spoilt[last][:-1]}
        save_file(spoilt, tmp_path / "model.safetensors", metadata={"format": "pt"})
        shape = (1, *whole[name].shape[1:])
        again = slices.read_by(OpenedFiles())
        assert torch.equal(again.read(name, (0, 0, 0), shape).float(), whole[name][:1])
        with pytest.raises(ConfigError, match=r"models.cannot_load[\s\S]*experts"):
            again.read(name, (whole[name].shape[0] - 1, 0, 0), shape)


def test_of_stacked_experts_those_that_are_wanted_are_made_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder("mxfp4", tmp_path)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    whole = factory().hf.get_parameter(name)
    slices = factory(BuildOptions(device=torch.device("meta"))).slices
    assert isinstance(slices, FolderSlices)
    seen = []

    def spied(parts: Any, settings: Any) -> Tensor:
        seen.append(len(parts["blocks"]))
        return mxfp4(parts, settings)

    monkeypatch.setitem(dequantize.FORMULAS, "mxfp4", spied)
    read = slices.read(name, (1, 0, 3), (1, whole.shape[1], 5))
    assert seen == [1] and torch.equal(read.float(), whole[1:2, :, 3:8])


@pytest.mark.parametrize(
    ("way", "end", "spoilt"),
    [
        ("gptq", "q_proj.qweight", torch.zeros(8, dtype=torch.int32)),
        ("compressed-tensors words", "q_proj.weight_shape", torch.tensor(3)),
        ("fp8", "q_proj.weight_scale_inv", torch.ones(3, 3)),
    ],
)
def test_what_does_not_fit_is_named_also_in_parts(way: str, end: str, spoilt: Tensor, tmp_path: Path) -> None:
    _folder(way, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(n for n in tensors if n.endswith(end))
    save_file(tensors | {name: spoilt}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    weight = name[: name.index("q_proj")] + "q_proj.weight"
    with pytest.raises(ConfigError, match=rf"models.cannot_load[\s\S]*{weight}"):
        factory()
    with pytest.raises(ConfigError, match=rf"models.cannot_load[\s\S]*{weight}"):
        slices = factory(BuildOptions(device=torch.device("meta"))).slices
        assert slices is not None
        slices.read(weight, (0, 0), (4, 4))


def test_an_adapter_is_trained_on_it_and_leaves_merged_as_plain_weights(tmp_path: Path) -> None:
    expected = _folder("fp8", tmp_path / "base")
    spec = AdapterSpec(r=2, alpha=4.0, target_modules=("q_proj",))
    saved = trained_checkpoint(tmp_path / "base", tmp_path / "run", spec)
    assert export_hf(saved, tmp_path / "out", "bfloat16", merge=True).load_checked
    found = load_file(tmp_path / "out/model.safetensors")
    moved = {n for n in expected if not torch.equal(found[n], expected[n])}
    assert set(found) == set(expected) and {n.rpartition("attn.")[2] for n in moved} == {"q_proj.weight"}
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    export_hf(saved, tmp_path / "alone")
    named = json.loads((tmp_path / "alone/adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(tmp_path / "base")


def test_a_folder_that_lacks_scales_is_refused_by_name(tmp_path: Path) -> None:
    _folder("fp8", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"models.missing_weights[\s\S]*layers.0.self_attn.q_proj.weight_scale"
    ):
        HFModelFactory(Source(name_or_path=str(tmp_path)))


def test_scales_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        by_blocks(torch.ones(32, 32).to(FP8), torch.ones(3, 3), (16, 16))


def test_a_tower_that_is_quantised_too_is_refused(tmp_path: Path) -> None:
    from test_composite import _saved

    _saved("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("q_proj.weight",))]:
        tensors |= {name: tensors[name].to(FP8), f"{name}_scale_inv": torch.ones(())}
    _write(tmp_path, tensors, {"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"plan.quantised_base[\s\S]*vision_tower"):
        HFModelFactory(Source(name_or_path=str(tmp_path)))()
    plain = {n: t.float() if "vision" in n and t.dtype == FP8 else t for n, t in tensors.items()}
    plain = {n: t for n, t in plain.items() if not ("vision" in n and n.endswith("_scale_inv"))}
    _write(tmp_path, plain, {"quant_method": "fp8"})
    module = HFModelFactory(Source(name_or_path=str(tmp_path)))()
    assert "quantized weights read as bfloat16" in module.notes()["tensors"]


def test_a_further_head_that_is_quantised_is_refused_and_a_plain_one_carried(tmp_path: Path) -> None:
    """Its fp8 would stand in an export whose config names no quantization."""
    build_family("llama").hf.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors |= {name: tensors[name].to(FP8), f"{name}_scale_inv": torch.ones(())}
    head = {"mtp.proj.weight": torch.ones(8, 8).to(FP8), "mtp.proj.weight_scale_inv": torch.ones(())}
    _write(tmp_path, tensors | head, {"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"plan.quantised_base[\s\S]*mtp.proj.weight"):
        HFModelFactory(Source(name_or_path=str(tmp_path)))()
    _write(tmp_path, tensors | {"mtp.proj.weight": torch.ones(8, 8)}, {"quant_method": "fp8"})
    assert "mtp.proj.weight" in HFModelFactory(Source(name_or_path=str(tmp_path)))().notes()["tensors"]
