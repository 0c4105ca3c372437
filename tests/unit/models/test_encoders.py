"""Encoders as classifiers: logits, losses and gradients of packed documents are those of Transformers' own
class on the same documents, padded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_families import (
    ENCODERS,
    ONE,
    PAIRS,
    SEVERAL,
    build_encoder,
    documents,
    padded,
    transformers_class,
)
from family_sweep import exported
from machines import A100
from model_families import Source
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from paceline.algorithms.supervised.classification import TERM, Classification
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.attention.compiled_attention import document_flash, document_scores
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    CpuDocuments,
    DocumentOptions,
    documents_generic,
    documents_padded,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.loading.list_parameters import ClassRequest, listing_of
from paceline.plan.model.parameter_list import parameters_of
from paceline.plan.model.read_config import scoring, shape_from_config
from paceline.plan.strategies.spec import Job
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output, Role
from paceline.rules.planning import make_plan

ASKED = frozenset({Output.CLASSES})


@pytest.mark.parametrize("classes", [ONE, SEVERAL], ids=["one class", "several classes"])
@pytest.mark.parametrize("family", ENCODERS)
def test_losses_and_gradients_are_those_of_transformers_before_and_after_a_step(
    family: str, classes: Classes
) -> None:
    module = build_encoder(family, classes)
    batch, labels = documents(classes, fillers=1, pairs=family in PAIRS)
    theirs = transformers_class(module, classes)
    ours_by_name = dict(module.hf.named_parameters())
    assert module.attention.layout == ("padded" if family.startswith("deberta") else "packed")
    algorithm = Classification()
    for _ in range(2):
        outputs = module(batch, ASKED)
        found = algorithm.losses(Role.CLASSIFIER, outputs, batch)[TERM] / algorithm.weights(batch)[TERM]
        rows = padded(batch, theirs.config.pad_token_id)
        expected = theirs(**rows, labels=labels.float() if classes.several else labels)
        torch.testing.assert_close(outputs["classes"][: len(labels)], expected.logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, expected.loss, rtol=1e-5, atol=1e-5)
        module.zero_grad()
        theirs.zero_grad()
        found.backward()
        expected.loss.backward()
        for name, parameter in theirs.named_parameters():
            assert parameter.grad is not None, name
            torch.testing.assert_close(
                ours_by_name[name].grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name
            )
        for model in (module.hf, theirs):
            torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("family", ENCODERS)
def test_a_language_model_s_folder_gets_transformers_head_and_the_export_its_logits(
    family: str, tmp_path: Path
) -> None:
    config = dict(ENCODERS[family])
    made: Any = AutoModelForMaskedLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    made.save_pretrained(tmp_path / "base")
    torch.manual_seed(5)
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    factory = HFModelFactory(
        Source(name_or_path=str(tmp_path / "base")), Role.CLASSIFIER, classes=ONE, seed=5
    )
    module, in_parts = factory(), factory(BuildOptions(by_slices=True))
    assert in_parts.slices is not None
    for name, tensor in theirs.named_parameters():
        assert torch.equal(module.hf.get_parameter(name), tensor), name
        read: torch.Tensor = in_parts.hf.get_parameter(name)
        if read.is_meta:
            read = in_parts.slices.read(name, (0,) * tensor.ndim, tensor.shape)
        assert torch.equal(read, tensor), name
    saved = exported(factory.saved_config, module, tmp_path)
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(saved)
    assert loaded.config.id2label == dict(enumerate(ONE.names))
    batch, _ = documents(pairs=family in PAIRS)
    with torch.no_grad():
        found, logits = (
            module.eval()(batch, ASKED)["classes"],
            loaded(**padded(batch, config["pad_token_id"])),
        )
    torch.testing.assert_close(found, logits.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_the_plan_lists_the_parameters_of_the_classification_class(family: str) -> None:
    config, hf = ENCODERS[family], build_encoder(family).hf
    listing = listing_of(ClassRequest(config=config))
    shape = scoring(replace(shape_from_config(config), listing=listing, tied=listing.tied, exact=True), 3)
    assert [(p.name, p.shape) for p in parameters_of(shape)] == [
        (name, tuple(p.shape)) for name, p in hf.named_parameters()
    ]
    assert shape.num_parameters == sum(p.numel() for p in hf.parameters())
    assert shape.max_position_embeddings == 40 - 2 * shape.family.padding_first


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"training": {"algorithm": "sft"}}, "they classify texts, and write none"),
        ({"training": {"algorithm": "dpo"}}, "they classify texts, and write none"),
        ({"training": {"parallelism": {"cp_size": 2}}}, "sees its whole document"),
        ({"lora": {"quantization_bit": 4}}, "not packed in 4 bits"),
    ],
)
def test_what_an_encoder_cannot_is_refused_by_name(changed: dict[str, Any], said: str) -> None:
    training = {"algorithm": "classification", "distributed_strategy": "fsdp", **changed.pop("training", {})}
    config = Config.model_validate(
        {
            "model": {"config": ENCODERS["bert"], "tokenizer": "none"},
            "data": {"train": "none.jsonl"},
            "training": training,
            **changed,
        }
    )
    with pytest.raises(ConfigError) as error:
        make_plan(Job(config, A100, world_size=2, launcher="torchrun", run_dir="none"))
    assert [d for d in error.value.diagnostics if said in d.what]


@pytest.mark.parametrize("window", [None, 1, 3])
def test_every_kernel_sees_both_sides_and_no_other_document(window: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    layout = replace(PackedSequenceInfo.over((0, 5, 6, 17), torch.device("cpu")), causal=False)
    given = [torch.randn(1, 2, 17, 8, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(3)]
    q, k, v = given
    options, bounds = AttentionOptions(0.3, window=window), torch.tensor(layout.bounds)
    document = torch.searchsorted(bounds[1:], torch.arange(17), right=True)
    far = (torch.arange(17)[:, None] - torch.arange(17)).abs() >= (window or 17)
    hidden = (document[:, None] != document) | far
    expected = (q @ k.mT * 0.3).masked_fill(hidden, -torch.inf).softmax(-1) @ v
    found = {
        "each": documents_generic(q, k, v, layout, options),
        "padded": documents_padded(q, k, v, layout, options),
        "scores": document_scores(q, k, v, None, bounds, 0.3, window, None, False),
        "capped": documents_generic(q, k, v, layout, options._replace(softcap=1e9)),
    }
    if window is None:
        found["flash"] = CpuDocuments.apply(
            q, k, v, DocumentOptions(layout.bounds, 0.3, torch.float64, False)
        )
        found["traced flash"] = document_flash(q, k, v, bounds, 0.3, False)[0]
    upstream = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, given, upstream)
    for name, out in found.items():
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9, msg=name)
        for ours, theirs in zip(torch.autograd.grad(out, given, upstream), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=name)
