#!/usr/bin/env python
"""What sentence-transformers says of small rows: losses and gradients of embedding models and rerankers.

    /opt/envs/st/bin/python tests/peers/retrieval_losses.py

The environment has sentence-transformers, and torch and transformers of constraints.txt. It writes
``recorded/retrieval.json``, which ``tests/unit/algorithms/test_retrieval.py`` replays.
"""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, ListNetLoss
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    CosineSimilarityLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import dot_score
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

TO = Path(__file__).parent / "recorded" / "retrieval.json"
WORDS = "a the red blue green stone river cloud bread lamp horse tiger is not near far who what it".split()  # noqa: SIM905
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_HEADS = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES, **_HEADS},
    "qwen3": {"model_type": "qwen3", **_SIZES, **_HEADS, "head_dim": 8},
    "bert": {"model_type": "bert", **_SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "xlm-roberta": {
        "model_type": "xlm-roberta",
        **_SIZES,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "modernbert": {
        "model_type": "modernbert",
        **_SIZES,
        "local_attention": 6,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
DECODERS = ("llama", "qwen3")
TYPES = {"bert": ("token_type_ids",)}  # what a tokenizer gives its model beside the tokens
ROWS = [
    {
        "query": f"who is {WORDS[i + 2]} {WORDS[i + 5]}",
        "positive": f"the {WORDS[i + 5]} is {WORDS[i + 2]} not far" + " far" * (i % 3),
        "negative_1": f"a {WORDS[i + 7]}",
        "negative_2": f"it is the {WORDS[(3 * i) % 12]} near a {WORDS[i + 1]}",
        "score": round(math.sin(i) ** 2, 3),
    }
    for i in range(5)
]


def tokenizer(encoder: bool) -> Tokenizer:
    """A tokenizer of words; an encoder's writes [CLS] and [SEP], the other an end as Qwen3-Embedding's."""
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[CLS]", "[SEP]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = (
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1") if encoder else ("$A [SEP]", "$A $B [SEP]")
    )
    made.post_processor = processors.TemplateProcessing(single, pair, [("[CLS]", 1), ("[SEP]", 2)])
    return made


def fill(model: torch.nn.Module) -> None:
    """Give every parameter values that follow from its name: the same in two programs."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            wave = torch.sin(0.37 * places + zlib.crc32(name.encode()) % 1000)
            base = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_((base + 0.2 * wave).view_as(parameter))


def folder(family: str, auto: Any, to: Path, **more: Any) -> Path:
    config = {k: v for k, v in CONFIGS[family].items() if k != "model_type"}
    model = auto.from_config(AutoConfig.for_model(CONFIGS[family]["model_type"], **config, **more))
    fill(model)
    model.save_pretrained(to)
    made, names = tokenizer(family not in DECODERS), ["input_ids", "attention_mask", *TYPES.get(family, ())]
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", eos_token="[SEP]", model_input_names=names
    ).save_pretrained(to)
    return to


def gradients(model: torch.nn.Module) -> dict[str, list[float]]:
    """The norm and the last values of some gradients."""
    named = [(n, p.grad) for n, p in model.named_parameters() if p.grad is not None and p.dim() == 2]
    chosen = [*named[:1], *named[2:4], *named[-1:]]
    return {n: [float(g.norm()), *g.flatten()[-3:].tolist()] for n, g in chosen}


def embedding_case(
    family: str, pooling: str, columns: list[str], loss: str, normalize: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(family, AutoModel, Path(scratch))
        mode = {"last": "lasttoken"}.get(pooling, pooling)
        model = SentenceTransformer(
            modules=[Transformer(str(path)), Pooling(32, mode), *([Normalize()] if normalize else [])],
            device="cpu",
        ).double()
    model.eval()
    features = [model.preprocess([row[column] for row in ROWS]) for column in columns]
    scores = torch.tensor([row["score"] for row in ROWS], dtype=torch.float64)
    like = {} if normalize else {"similarity_fct": dot_score}
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    made: dict[str, Any] = {
        "infonce": lambda: MultipleNegativesRankingLoss(model, **like),
        "cached": lambda: CachedMultipleNegativesRankingLoss(model, mini_batch_size=2, **like),
        "symmetric": lambda: MultipleNegativesRankingLoss(model, **both),
        "cosine_similarity": lambda: CosineSimilarityLoss(model),
    }
    value = made[loss]()(features, scores)
    value.backward()
    trunk = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
    return {
        "family": family,
        "pooling": pooling,
        "columns": columns,
        "loss_type": loss,
        "normalize": normalize,
        "loss": float(value.detach()),
        "gradients": gradients(trunk),
    }


def reranker_case(family: str, loss: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(family, AutoModelForSequenceClassification, Path(scratch), num_labels=1)
        model = CrossEncoder(str(path), device="cpu").double()
    model.eval()
    documents = [[row[c] for c in ("positive", "negative_1", "negative_2")] for row in ROWS]
    queries = [row["query"] for row in ROWS]
    if loss == "pointwise":
        flat = [
            (q, d, float(n == 0))
            for q, docs in zip(queries, documents, strict=True)
            for n, d in enumerate(docs)
        ]
        texts = [[q for q, _, _ in flat], [d for _, d, _ in flat]]
        value = BinaryCrossEntropyLoss(model)(
            texts, torch.tensor([y for _, _, y in flat], dtype=torch.float64)
        )
    else:
        value = ListNetLoss(model)([queries, documents], [torch.tensor([1.0, 0.0, 0.0])] * len(ROWS))
    value.backward()
    trunk = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
    return {"family": family, "loss_type": loss, "loss": float(value.detach()), "gradients": gradients(trunk)}


def main() -> None:
    pair, triple = ["query", "positive"], ["query", "positive", "negative_1", "negative_2"]
    embeddings = [
        ("llama", "last", pair, "infonce", True),
        ("llama", "last", triple, "cached", True),
        ("qwen3", "last", triple, "infonce", True),
        ("qwen3", "last", pair, "symmetric", True),
        ("llama", "mean", triple, "infonce", False),
        ("llama", "mean", pair, "cosine_similarity", True),
        ("bert", "cls", triple, "infonce", True),
        ("bert", "mean", pair, "cosine_similarity", True),
        ("xlm-roberta", "mean", triple, "infonce", True),
        ("modernbert", "cls", triple, "infonce", True),
    ]
    rerankers = [
        ("llama", "pointwise"),
        ("qwen3", "list_net"),
        ("bert", "pointwise"),
        ("xlm-roberta", "list_net"),
    ]
    rerankers += [("modernbert", "pointwise")]
    tokenizers = {kind: json.loads(tokenizer(kind == "encoder").to_str()) for kind in ("encoder", "decoder")}
    recorded = {
        "sentence_transformers": sentence_transformers.__version__,
        "rows": ROWS,
        "configs": CONFIGS,
        "tokenizers": tokenizers,
        "embedding": [embedding_case(*case) for case in embeddings],
        "reranker": [reranker_case(*case) for case in rerankers],
    }
    TO.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
