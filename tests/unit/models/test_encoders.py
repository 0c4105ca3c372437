"""Encoders as classifiers: logits, losses and gradients of packed documents are those of Transformers' own
class on the same documents, padded.
"""

from __future__ import annotations

from dataclasses import replace

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

from paceline.algorithms.supervised.classification import TERM, Classification
from paceline.models.attention.compiled_attention import document_flash, document_scores
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    CpuDocuments,
    documents_generic,
    documents_padded,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.heads.sequence_classification import Classes
from paceline.protocols.roles import Output, Role

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
        found["flash"] = CpuDocuments.apply(q, k, v, layout.bounds, 0.3, torch.float64, False)
        found["traced flash"] = document_flash(q, k, v, bounds, 0.3, False)[0]
    upstream = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, given, upstream)
    for name, out in found.items():
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9, msg=name)
        for ours, theirs in zip(torch.autograd.grad(out, given, upstream), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=name)
