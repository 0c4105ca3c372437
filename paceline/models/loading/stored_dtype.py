"""The dtype in which a checkpoint's weights can be read without changing a value of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.models.loading.materialize import skeleton
from paceline.plan.model.files.safetensors_headers import stored

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

    from paceline.models.heads.sequence_classification import AutoClass

_FILES = ["model*.safetensors", "model.safetensors.index.json"]


def stored_dtype(name: str, revision: str | None, needed: frozenset[str] = frozenset()) -> torch.dtype:
    """Return bf16 or fp16 if every tensor of the folder (or of the hub's ``name``) is stored so, else fp32.

    ``needed`` tensors that are not stored would be drawn at random in the returned dtype: then it is fp32.
    """
    try:
        kind, names = stored(weights_folder(name, revision))
    except (OSError, ValueError):  # the load itself says what is wrong
        return torch.float32
    found: torch.dtype = getattr(torch, kind)
    return found if needed <= names else torch.float32


def weights_folder(name: str, revision: str | None) -> Path:
    """Return the local folder of ``name``; the hub's weights are downloaded if they are not there yet."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision or "main", allow_patterns=_FILES))


def buffers_keep_dtype(
    auto: AutoClass, config: PreTrainedConfig, attention: str | None, dtype: torch.dtype
) -> bool:
    """Return whether the model built in ``dtype`` has the same dtypes of buffers as one built in fp32:
    Gemma's scale of embeddings, say, would be rounded.
    """
    code = {"trust_remote_code": False}
    return _buffers(skeleton(auto, config, attention, code)) == _buffers(
        skeleton(auto, config, attention, code, dtype)
    )


def _buffers(model: nn.Module) -> dict[str, torch.dtype]:
    plain = {
        f"{prefix}.{name}": value.dtype
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }
    return plain | {name: buffer.dtype for name, buffer in model.named_buffers()}
