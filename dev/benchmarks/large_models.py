"""Models of gigabytes for benchmarks, made quickly: random values that many tensors share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.checkpoint.export.hf_folder import write_weights
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.models.factory import HFModelFactory
from paceline.protocols.model import BuildOptions

GIB = 2**30
MIB = 2**20
WIDE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
LLAMA = {**WIDE, "model_type": "llama", "intermediate_size": 8192, "vocab_size": 32000}


@dataclass(frozen=True)
class Source:
    """A model section."""

    name_or_path: str | None = None
    config: dict[str, Any] | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    resize_embeddings: str = "auto"
    embedding_multiple: int = 1


class Values:
    """Random values; every tensor is a view of the same ones, from another place on."""

    def __init__(self, most: int) -> None:
        self._values = torch.randn(most + 4096) * 0.02
        self._at = 0

    def of(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        self._at = (self._at + 97) % 4096
        return self._values[self._at : self._at + math.prod(shape)].view(shape).to(dtype)


def layers_for(config: dict[str, Any], gib: float) -> dict[str, Any]:
    """Return ``config`` with so many layers that its fp32 weights fill ``gib``."""

    def size(layers: int) -> int:
        module = HFModelFactory(Source(config={**config, "num_hidden_layers": layers}))(
            BuildOptions(device=torch.device("meta"))
        )
        return sum(4 * p.numel() for p in module.hf.parameters())

    one, two = size(1), size(2)
    return {**config, "num_hidden_layers": max(1, math.ceil((gib * GIB - one) / (two - one)) + 1)}


def write_folder(
    folder: Path, skeleton: nn.Module, config: dict[str, Any], dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a model folder in ``dtype``."""
    named = [(n, tuple(p.shape)) for n, p in skeleton.named_parameters()]
    values = Values(max(math.prod(shape) for _, shape in named))
    folder.mkdir()

    def entry(name: str, shape: tuple[int, ...]) -> TensorEntry:
        return TensorEntry(name, dtype, shape, lambda: values.of(shape, dtype))

    write_weights(folder, [entry(name, shape) for name, shape in named], 2 * 10**9)
    (folder / "config.json").write_text(json.dumps(config))


def write_fp8_folder(folder: Path, skeleton: nn.Module, config: dict[str, Any]) -> None:
    """Write a model folder whose projections are stored in fp8, with a scale a block of 128."""
    named = [(n, tuple(p.shape)) for n, p in skeleton.named_parameters()]
    values = Values(max(math.prod(shape) for _, shape in named))
    folder.mkdir()

    def entries() -> Iterator[TensorEntry]:
        for name, shape in named:
            packed = name.endswith("_proj.weight")
            dtype = torch.float8_e4m3fn if packed else torch.bfloat16
            yield TensorEntry(name, dtype, shape, partial(values.of, shape, dtype))
            if packed:
                scales = tuple(-(-size // 128) for size in shape)
                yield TensorEntry(f"{name}_scale_inv", torch.float32, scales, partial(torch.ones, scales))

    write_weights(folder, [*entries()], 2 * 10**9)
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": how}))


def memory_of(pid: int | str) -> tuple[int, int]:
    """Return what a process holds itself (RssAnon and RssShmem: not pages of mapped files) and VmHWM, which
    counts those too, in bytes. Raises OSError.
    """
    text = Path(f"/proc/{pid}/status").read_text()
    lines = (line.split(":") for line in text.splitlines() if line.endswith(" kB"))
    sizes = {key: int(value.split()[0]) * 1024 for key, value in lines}
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("VmHWM", 0)
