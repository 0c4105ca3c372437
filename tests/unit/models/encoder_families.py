"""A tiny encoder of every family, batches of texts and of pairs, and the rows that Transformers reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from model_families import VOCAB, Source, make_batch, spread_out
from torch import Tensor

from paceline.algorithms.supervised.classification import LABEL
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.role_module import RoleModule
from paceline.models.special_tokens import SECOND
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role

_BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "type_vocab_size": 2,
}
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pad_token_id": 0}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **_BERT, "pad_token_id": 0},
    "roberta": {"model_type": "roberta", **_BERT},
    "xlm-roberta": {"model_type": "xlm-roberta", **_BERT, "type_vocab_size": 1},
    "deberta_v2": {
        "model_type": "deberta-v2",
        **_DEBERTA,
        "conv_kernel_size": 3,
        "pooler_hidden_size": 32,
    },
    "deberta_v3": {
        "model_type": "deberta-v2",
        **_DEBERTA,
        "position_buckets": 4,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "pooler_hidden_size": 32,
    },
    "modernbert": {
        "model_type": "modernbert",
        **{k: v for k, v in _BERT.items() if k != "type_vocab_size"},
        "num_hidden_layers": 3,
        "global_attn_every_n_layers": 2,
        "local_attention": 6,
        "cls_token_id": 3,
        "sep_token_id": 4,
        "bos_token_id": 3,
        "eos_token_id": 4,
    },
}
ENCODERS["modernbert_mean"] = {**ENCODERS["modernbert"], "classifier_pooling": "mean"}
#: of pairs: their trunk reads which of two texts a token belongs to
PAIRS = ("bert", "roberta", "deberta_v2")
LENGTHS = (5, 12, 3, 9)
ONE, SEVERAL = Classes(("bad", "fair", "good")), Classes(("art", "law", "war"), True)


def build_encoder(family: str, classes: Classes = ONE, **options: Any) -> RoleModule:
    """A classifier in training mode without dropout, its weights spread out."""
    options = {"dropout": False, **options}
    module = HFModelFactory(Source(config=ENCODERS[family]), Role.CLASSIFIER, classes=classes, **options)()
    spread_out(module)
    return module.train()


def documents(classes: Classes = ONE, fillers: int = 0, pairs: bool = False) -> tuple[Batch, Tensor]:
    """Documents (``pairs``: all but the last one of two texts) and their classes, then fillers."""
    batch = make_batch((*LENGTHS, *[2] * fillers), labels="none")
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]] if classes.several else [2, 0, 1, 2])
    shown = torch.cat([labels, torch.zeros(fillers, *labels.shape[1:], dtype=labels.dtype)]).double()
    extras = {LABEL: shown}
    if pairs:
        extras[SECOND] = torch.tensor([2.0, 7, 1, 0, *[0] * fillers], dtype=torch.float64)
    ids = torch.tensor([*range(len(LENGTHS)), *[-1] * fillers])
    return replace(batch, document_ids=ids, extras=extras), labels


def padded(batch: Batch, pad: int) -> dict[str, Tensor]:
    """The real documents as Transformers' classes take them, padded on the right."""
    bounds = batch.cu_seqlens.tolist()
    spans = [(a, b) for a, b in zip(bounds, bounds[1:], strict=False)][: len(LENGTHS)]
    lengths = torch.tensor([[b - a] for a, b in spans])
    rows = [batch.input_ids[0, a:b] for a, b in spans]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    places = torch.arange(ids.shape[1])
    found = {"input_ids": ids, "attention_mask": (places < lengths).long()}
    if SECOND in batch.extras:
        begins = batch.extras[SECOND][: len(LENGTHS), None]
        found["token_type_ids"] = ((begins > 0) & (places >= begins) & (places < lengths)).long()
    return found


def transformers_class(module: RoleModule, classes: Classes) -> Any:
    """The family's own class for sequence classification with these weights, no dropout, and its own choice
    of attention.
    """
    hf = module.hf
    config = type(hf.config).from_dict(hf.config.to_dict())
    config.problem_type = classes.of_config["problem_type"]
    theirs: Any = type(hf)._from_config(config, dtype=next(hf.parameters()).dtype)
    theirs.load_state_dict(hf.state_dict())
    for part in theirs.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return theirs.train()
