"""GGUF next to an exported folder: written from its files, read back by Transformers and compared.

The package gguf defines the names of tensors and the file format. A family is written only where Transformers
reads it from GGUF. The file cannot hold some values of a config (another head size, biases, scaled
positions). The export finds them when it reads the config back, and refuses.
"""

from __future__ import annotations

import io
import math
import tempfile
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.export.architecture import gives_scores, writes_text
from paceline.checkpoint.export.gguf.config_values import whole
from paceline.checkpoint.export.gguf.families import FAMILIES, GGUFFamily, add_config
from paceline.checkpoint.export.gguf.tensors import ROUNDED, Folder, Stored, opened, stored
from paceline.checkpoint.export.gguf.tokenizer import add_tokenizer, compare_tokenizer, tokenizer_of
from paceline.checkpoint.export.hf_folder import without_progress
from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.plan.model.family import family_of

FILE = "model.gguf"
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
    """Raise ConfigError before anything is written: for a missing package, an unsupported family, or an
    unmerged adapter."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ConfigError(
            codes.EXPORT_GGUF(
                "GGUF needs the package gguf", "--gguf", "not installed", "pip install 'paceline[gguf]'"
            )
        ) from None
    if is_adapter:
        raise ConfigError(
            codes.EXPORT_GGUF(
                "the run has trained an adapter",
                "--gguf",
                "an adapter",
                "add --merge: GGUF holds a complete model",
            )
        )
    if not writes_text(config):
        raise ConfigError(
            codes.EXPORT_GGUF(
                "the model gives scores" if gives_scores(config) else "the model gives vectors",
                "--gguf",
                f"architectures: {config.get('architectures')}",
                "leave --gguf out: GGUF is written for language models",
            )
        )
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        reason = family_of(family).not_gguf or "no reader of Transformers' was found to read it back as it is"
        raise ConfigError(
            codes.EXPORT_GGUF(
                "this family is not written as GGUF",
                "--gguf",
                f"model_type {family}: {reason}",
                f"families that are: {', '.join(FAMILIES)}; leave --gguf out for a Hugging Face folder",
            )
        )


def write_gguf(folder: Path, dtype: torch.dtype) -> None:
    """Write ``model.gguf`` into an exported folder: matrices in ``dtype``, vectors in float32.

    Writing holds one tensor at a time (or the experts of a layer). Transformers then loads the whole file in
    float32, and every value is compared. Raises CheckpointError where the tokenizer has no form in GGUF, or
    where anything differs.
    """
    from transformers import AutoConfig

    config: JsonObject = AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict()
    family = FAMILIES[str(config["model_type"])]
    tokenizer = tokenizer_of(folder, int(str(config["vocab_size"])))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".gguf-") as aside, opened(folder) as weights:
        path = Path(aside) / FILE
        tensors = _write(path, config, family, tokenizer, weights, dtype)
        _compare(path, config, family, tensors, weights, dtype)
        path.rename(folder / FILE)


def _write(
    path: Path,
    config: JsonObject,
    family: GGUFFamily,
    tokenizer: JsonObject,
    weights: Folder,
    dtype: torch.dtype,
) -> list[Stored]:
    """Write the file; return its tensors."""
    from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map

    layers = whole(config, "num_hidden_layers" if "num_hidden_layers" in config else "n_layer")
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == family.arch)
    tensors = stored(weights, get_tensor_name_map(arch, layers).get_name, family.changes, family.names)
    if isinstance(tensors, str):
        raise CheckpointError(_differs(f"the tensor {tensors} has no name in GGUF", path.parent, tensors))
    writer = GGUFWriter(path, family.arch)
    writer.add_name(str(config["model_type"]).title())
    add_config(writer, family, config)
    add_tokenizer(writer, tokenizer, config, path.parent.parent)
    kinds = {
        torch.float32: GGMLQuantizationType.F32,
        torch.float16: GGMLQuantizationType.F16,
        torch.bfloat16: GGMLQuantizationType.BF16,
    }
    for tensor_info in tensors:
        shape = tensor_info.made(weights.empty, config).shape
        kind = tensor_info.kind(len(shape), dtype)
        size = shape.numel() * kind.itemsize
        writer.add_tensor_info(tensor_info.name, shape, np.dtype(np.float32), size, raw_dtype=kinds[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor_info in tensors:
        tensor = tensor_info.made(weights.__getitem__, config)
        tensor = tensor.to(tensor_info.kind(tensor.ndim, dtype)).contiguous()
        is_bf16 = tensor.dtype == torch.bfloat16
        writer.write_tensor_data(tensor.view(torch.int16).numpy() if is_bf16 else tensor.numpy())
    writer.close()
    return tensors


def _compare(
    path: Path,
    config: JsonObject,
    family: GGUFFamily,
    tensors: list[Stored],
    weights: Folder,
    dtype: torch.dtype,
) -> None:
    """Read config and weights back by Transformers. Raises CheckpointError where they differ."""
    from transformers import AutoConfig, AutoModelForCausalLM

    wanted, folder = family.as_read(config), path.parent.parent
    # The bar of GGUF's tensors is tqdm's own, on stderr.
    with without_progress(), redirect_stderr(io.StringIO()):
        read = AutoConfig.from_pretrained(path.parent, gguf_file=FILE, trust_remote_code=False).to_dict()
        if wrong := [key for key in sorted(set(wanted) - UNREAD) if not _same(wanted[key], read.get(key))]:
            differences = ", ".join(f"{key}: {wanted[key]} would be read as {read.get(key)}" for key in wrong)
            raise CheckpointError(_differs("GGUF cannot hold this model's config", folder, differences))
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=FILE, dtype=torch.float32, trust_remote_code=False
            )
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            differences = f"{type(error).__name__}: {error}"[:300]
            raise CheckpointError(
                _differs("Transformers cannot load the file again", folder, differences)
            ) from error
        compare_tokenizer(folder, path.parent, FILE)
    with torch.device("meta"):
        skeleton = type(model)(model.config)  # the one that was read forgets how experts are released
    entries = [TensorEntry(n, t.dtype, tuple(t.shape), t.clone) for n, t in model.state_dict().items()]
    state = {entry.name: entry for entry in hub_entries(skeleton, entries)}
    for stored_tensor in tensors:
        kind = stored_tensor.kind(stored_tensor.made(weights.empty, config).ndim, dtype)
        for name in stored_tensor.sources:
            expected = weights[name].to(kind).float()
            if name not in state or not _equal(state[name].load(), expected, stored_tensor.exact):
                raise CheckpointError(_differs("a tensor read back from GGUF differs", folder, name))


def _equal(read: Tensor, expected: Tensor, exact: bool) -> bool:
    if read.shape != expected.shape:
        return False
    if exact:
        return torch.equal(read, expected)
    return bool(((read - expected).abs() <= ROUNDED * (1 + expected.abs())).all())


def _same(a: Json, b: Json) -> bool:
    """Whether two values are equal, with numbers in float32 as in GGUF."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, float) or isinstance(b, float):
        return (
            isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isclose(a, b, rel_tol=1e-6)
        )
    return a == b


def _differs(message: str, folder: Path, evidence: str) -> Diagnostic:
    return codes.EXPORT_GGUF(
        message, str(folder), evidence, "leave --gguf out: the Hugging Face folder holds all of it"
    )
