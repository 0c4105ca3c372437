"""GGUF beside an exported folder: written from its files, read back by Transformers and compared.

Names of tensors and the file's form are the package gguf's. A family is written only where Transformers reads
it from GGUF; what the file cannot say of a config (another head size, biases, scaled positions) is found when
the config is read back, and refused.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.folder import without_progress
from paceline.checkpoint.gguf_tokenizer import Writer, add_tokenizer, tokenizer_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.json_types import Json, JsonObject

FILE = "model.gguf"
#: Families that are written: their architecture in GGUF, and whether it stores rotated heads interleaved.
FAMILIES: Mapping[str, tuple[str, bool]] = {
    "llama": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
}
#: Keys of a config that say nothing of what the model computes.
UNREAD = frozenset(
    {
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_window_layers",
        "pad_token_id",
        "pretraining_tp",
        "transformers_version",
        "use_cache",
    }
)


def check_gguf(config: JsonObject, *, is_adapter: bool) -> None:
    """Raise ConfigError before anything is written: package, family, an adapter that is not merged."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ConfigError(
            codes.EXPORT_GGUF(
                "GGUF needs the package gguf", "--gguf", "not installed", "pip install 'paceline[gguf]'"
            )
        ) from None
    if is_adapter:
        hint = "add --merge: GGUF holds a complete model"
        raise ConfigError(codes.EXPORT_GGUF("the run has trained an adapter", "--gguf", "an adapter", hint))
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise ConfigError(
            codes.EXPORT_GGUF(
                "this family is not written as GGUF",
                "--gguf",
                f"model_type {family}",
                f"families that are: {', '.join(FAMILIES)}; leave --gguf out for a Hugging Face folder",
            )
        )


def write_gguf(folder: Path, dtype: torch.dtype) -> None:
    """Write ``model.gguf`` into an exported folder: matrices in ``dtype``, vectors in float32.

    A tensor at a time while writing; Transformers then loads it whole in float32 and every value is compared.
    Raises CheckpointError where the tokenizer has no form in GGUF, or where anything differs.
    """
    config: JsonObject = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = tokenizer_of(folder, int(str(config["vocab_size"])))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".gguf-") as aside:
        path = Path(aside) / FILE
        with _weights(folder) as weights:
            _write(path, config, tokenizer, weights, dtype)
            _compare(path, folder, weights, dtype)
        path.rename(folder / FILE)


@dataclass(frozen=True)
class _Weights:
    """The tensors of a folder's safetensors files, read one by one."""

    files: Mapping[str, safe_open]

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.files[name].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor


@contextmanager
def _weights(folder: Path) -> Iterator[_Weights]:
    files: dict[str, safe_open] = {}
    for path in sorted(folder.glob("*.safetensors")):
        opened = safe_open(path, framework="pt")
        files |= dict.fromkeys(opened.keys(), opened)  # type: ignore[no-untyped-call]
    yield _Weights(files)


def _write(
    path: Path, config: JsonObject, tokenizer: JsonObject, weights: _Weights, dtype: torch.dtype
) -> None:
    from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map

    arch, interleaved = FAMILIES[str(config["model_type"])]
    number = {name: int(str(config[name])) for name in _NUMBERS}
    names = get_tensor_name_map(
        next(key for key, value in MODEL_ARCH_NAMES.items() if value == arch), number["num_hidden_layers"]
    )
    writer = GGUFWriter(path, arch)
    _add_config(writer, config, number)
    add_tokenizer(writer, tokenizer, config)
    kinds = {
        torch.float32: GGMLQuantizationType.F32,
        torch.float16: GGMLQuantizationType.F16,
        torch.bfloat16: GGMLQuantizationType.BF16,
    }
    listed = []
    for name in weights.files:
        stem, _, suffix = name.rpartition(".")
        if (found := names.get_name(stem)) is None:
            raise CheckpointError(_differs(f"the tensor {name} has no name in GGUF", path.parent, name))
        tensor = weights[name]
        kind = kinds[dtype] if tensor.ndim > 1 else GGMLQuantizationType.F32
        size = tensor.numel() * (4 if kind == GGMLQuantizationType.F32 else 2)
        listed.append((name, kind))
        data = tensor.float().numpy()
        writer.add_tensor_info(f"{found}.{suffix}", data.shape, data.dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, kind in listed:
        tensor = weights[name]
        if interleaved and (heads := _heads(name, number)):
            tensor = _interleaved(tensor, heads)
        chosen = torch.float32 if kind == GGMLQuantizationType.F32 else dtype
        stored = tensor.to(chosen).contiguous()
        writer.write_tensor_data(
            stored.view(torch.int16).numpy() if chosen == torch.bfloat16 else stored.numpy()
        )
    writer.close()


_NUMBERS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "vocab_size",
)


def _add_config(writer: Writer, config: JsonObject, number: Mapping[str, int]) -> None:
    """What Transformers and llama.cpp read of the architecture."""
    head = int(str(config.get("head_dim") or number["hidden_size"] // number["num_attention_heads"]))
    rope = config.get("rope_parameters") or config
    for method, value in {
        "add_name": str(config["model_type"]),
        "add_context_length": number["max_position_embeddings"],
        "add_embedding_length": number["hidden_size"],
        "add_block_count": number["num_hidden_layers"],
        "add_feed_forward_length": number["intermediate_size"],
        "add_head_count": number["num_attention_heads"],
        "add_head_count_kv": number["num_key_value_heads"],
        "add_key_length": head,
        "add_value_length": head,
        "add_rope_dimension_count": head,
        "add_rope_freq_base": float(str(rope["rope_theta"])) if isinstance(rope, dict) else 10000.0,
        "add_layer_norm_rms_eps": float(str(config["rms_norm_eps"])),
        "add_vocab_size": number["vocab_size"],
    }.items():
        getattr(writer, method)(value)


def _heads(name: str, number: Mapping[str, int]) -> int:
    """The heads of a projection that positions rotate; 0 for other tensors."""
    if ".q_proj." in name:
        return number["num_attention_heads"]
    return number["num_key_value_heads"] if ".k_proj." in name else 0


def _interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head as GGUF's Llama rotates them: pairs side by side, not half a head apart."""
    parts = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return parts.swapaxes(1, 2).reshape(tensor.shape)


def _compare(path: Path, folder: Path, weights: _Weights, dtype: torch.dtype) -> None:
    """Read config and weights back by Transformers. Raises CheckpointError where they differ."""
    from transformers import AutoConfig, AutoModelForCausalLM

    wanted = AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict()
    # The bar of GGUF's tensors is tqdm's own, on stderr.
    with without_progress(), redirect_stderr(io.StringIO()):
        read = AutoConfig.from_pretrained(path.parent, gguf_file=FILE, trust_remote_code=False).to_dict()
        keys = sorted((set(wanted) | set(read)) - UNREAD)
        if wrong := [key for key in keys if not _same(wanted.get(key), read.get(key))]:
            found = ", ".join(f"{key}: {wanted.get(key)} would be read as {read.get(key)}" for key in wrong)
            raise CheckpointError(_differs("GGUF cannot hold this model's config", folder, found))
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=FILE, dtype=torch.float32, trust_remote_code=False
        )
    state = model.state_dict()
    for name in weights.files:
        tensor = weights[name]
        expected = tensor.to(dtype).float() if tensor.ndim > 1 else tensor.float()
        if name not in state or not torch.equal(state[name], expected):
            raise CheckpointError(_differs("a tensor read back from GGUF differs", folder, name))


def _same(a: Json, b: Json) -> bool:
    """Equal; numbers as GGUF keeps them, in float32."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, float) or isinstance(b, float):
        return (
            isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isclose(a, b, rel_tol=1e-6)
        )
    return a == b


def _differs(message: str, folder: Path, found: str) -> Diagnostic:
    hint = "leave --gguf out: the Hugging Face folder holds all of it"
    return codes.EXPORT_GGUF(message, str(folder), found, hint)
