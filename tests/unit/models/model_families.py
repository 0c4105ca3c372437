"""Tiny models of every tested family, flat batches, and Hugging Face's own answer a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import IGNORE_INDEX, Batch

VOCAB = 97
_LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_LLAMA},
    "llama_tied": {"model_type": "llama", **_LLAMA, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **_LLAMA},
    "qwen2_window": {
        "model_type": "qwen2",
        **_LLAMA,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **_LLAMA, "head_dim": 16},
    "mistral": {"model_type": "mistral", **_LLAMA, "sliding_window": 4},
    "gemma": {"model_type": "gemma", **_LLAMA, "head_dim": 8},
    "gemma2": {
        "model_type": "gemma2",
        **_LLAMA,
        "head_dim": 8,
        "sliding_window": 4,
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 3.0,
    },
    "gemma3": {"model_type": "gemma3_text", **_LLAMA, "head_dim": 8, "sliding_window": 4},
    "phi3": {"model_type": "phi3", **_LLAMA},
    "phi": {"model_type": "phi", **_LLAMA},
    "cohere": {"model_type": "cohere", **_LLAMA, "logit_scale": 0.5},
    "granite": {"model_type": "granite", **_LLAMA, "logits_scaling": 4.0},
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_LLAMA,
        "head_dim": 8,
        "sliding_window": 4,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": VOCAB,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        **_LLAMA,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "bloom": {
        "model_type": "bloom",
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": VOCAB,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


@dataclass(frozen=True)
class Source:
    """A ``model:`` section as the factory reads it."""

    config: dict[str, Any] | None = None
    name_or_path: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    resize_embeddings: str = "auto"
    embedding_multiple: int = 1


def build_family(family: str, **kwargs: Any) -> RoleModule:
    """A root module in training mode with weights spread out; keyword arguments go to the factory."""
    module = HFModelFactory(Source(config=FAMILIES[family]), **kwargs)()
    spread_out(module)
    return module.train()


@torch.no_grad()
def spread_out(module: RoleModule) -> None:
    """Weights far enough from their initial values that scores, caps and norms matter."""
    generator = torch.Generator().manual_seed(1)
    for _, parameter in module.plain_named_parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    module.refresh_compute_weights()


def make_batch(lengths: Sequence[int] = (5, 12, 3, 9), *, labels: str = "all", seed: int = 0) -> Batch:
    """A flat batch of random documents; ``labels``: all, some, none."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(3, VOCAB, (1, total), generator=generator)
    wanted = torch.full((1, total), IGNORE_INDEX)
    bounds, positions = [0], []
    for length in lengths:
        start = bounds[-1]
        wanted[0, start : start + length - 1] = ids[0, start + 1 : start + length]
        positions += range(length)
        bounds.append(start + length)
    if labels == "some":
        wanted[0, torch.rand(total, generator=generator) < 0.5] = IGNORE_INDEX
    if labels == "none":
        wanted.fill_(IGNORE_INDEX)
    return Batch(
        ids,
        wanted,
        torch.tensor([positions]),
        torch.tensor(bounds, dtype=torch.int32),
        max(lengths),
        torch.arange(len(lengths)),
        len(lengths),
    )


def reference_model(hf: Any) -> Any:
    """A fresh copy of the Hugging Face class with eager attention and none of our swaps."""
    config = type(hf.config).from_dict(hf.config.to_dict())
    clean = type(hf)._from_config(config, attn_implementation="eager", dtype=next(hf.parameters()).dtype)
    clean.load_state_dict(hf.state_dict())
    return clean.train(hf.training)


def reference_logits(hf: Any, batch: Batch) -> Tensor:
    """[T, V]: every document alone through ``reference_model``."""
    clean = reference_model(hf)
    bounds = batch.cu_seqlens.tolist()
    rows = [
        clean(input_ids=batch.input_ids[:, a:b], use_cache=False).logits[0]
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    hf.reference = [clean]  # in a list: not a submodule; its gradients are read by tests
    return torch.cat(rows)


def reference_logprobs(hf: Any, batch: Batch) -> Tensor:
    """[L]: log p(label) at the labelled positions."""
    logs = torch.log_softmax(reference_logits(hf, batch), dim=-1)
    labels = batch.labels[0]
    places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    return logs[places].gather(1, labels[places, None]).squeeze(1)
