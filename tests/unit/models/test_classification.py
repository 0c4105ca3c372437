"""Classification: loss, gradients and exported logits are those of Transformers' own sequence
classification; counts add up over any split.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, VOCAB, Source, build_family, make_batch, reference_model
from torch import Tensor

from paceline.algorithms.supervised.classification import LABEL, TERM, Classification
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role

ONE, SEVERAL = Classes(("bad", "fair", "good")), Classes(("art", "law", "war"), True)
ASKED = frozenset({Output.CLASSES})
LENGTHS = (5, 12, 3, 9)


def labelled(classes: Classes, fillers: int = 0) -> tuple[Batch, Tensor]:
    """Documents without labelled tokens and their classes, then fillers."""
    batch = make_batch((*LENGTHS, *[2] * fillers), labels="none")
    labels = torch.tensor(
        [2, 0, 1, 2] if not classes.several else [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]
    )
    shown = torch.cat([labels, torch.zeros(fillers, *labels.shape[1:], dtype=labels.dtype)]).double()
    ids = torch.tensor([*range(len(LENGTHS)), *[-1] * fillers])
    return replace(batch, document_ids=ids, extras={LABEL: shown}), labels


def padded(batch: Batch, pad: int) -> dict[str, Tensor]:
    """The real documents as Transformers takes them, padded on the right."""
    bounds = batch.cu_seqlens.tolist()
    rows = [batch.input_ids[0, a:b] for a, b in zip(bounds, bounds[1:], strict=False)][: len(LENGTHS)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(ids.shape[1]) < torch.tensor([[len(r)] for r in rows])).long(),
    }


@pytest.mark.parametrize("classes", [ONE, SEVERAL], ids=["one class", "several classes"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_loss_and_gradients_are_those_of_transformers(family: str, classes: Classes) -> None:
    module = build_family(family, role=Role.CLASSIFIER, classes=classes, master_dtype=torch.float64)
    batch, labels = labelled(classes, fillers=1)
    algorithm = Classification()
    loss = (
        algorithm.losses(Role.CLASSIFIER, module(batch, ASKED), batch)[TERM] / algorithm.weights(batch)[TERM]
    )
    theirs: Any = reference_model(module.hf)
    theirs.config.pad_token_id, theirs.config.problem_type = 0, classes.of_config["problem_type"]
    expected = theirs(**padded(batch, 0), labels=labels.double() if classes.several else labels).loss
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(module.hf.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [ONE, SEVERAL], ids=["one class", "several classes"])
def test_a_saved_folder_has_the_classes_and_the_same_logits(classes: Classes, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    factory = HFModelFactory(Source(config=FAMILIES["llama"]), Role.CLASSIFIER, classes=classes)
    module = factory()
    module.hf.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(factory.saved_config))
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    batch, _ = labelled(classes)
    loaded.config.pad_token_id = 0
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(**padded(batch, 0)).logits, module(batch, ASKED)["classes"], rtol=1e-5, atol=1e-5
        )
    assert Classes.read(Role.CLASSIFIER, factory.saved_config) == classes
    assert loaded.config.id2label == dict(enumerate(classes.names))
    assert loaded.config.problem_type == classes.of_config["problem_type"]
    other = HFModelFactory(Source(name_or_path=str(tmp_path)), Role.CLASSIFIER, classes=Classes(("a", "b")))
    with pytest.raises(Exception, match="models.cannot_load"):
        other()


def test_a_language_model_gets_a_seeded_head_of_as_many_classes(tmp_path: Path) -> None:
    build_family("llama").hf.save_pretrained(tmp_path)
    made: list[RoleModule] = [
        HFModelFactory(Source(name_or_path=str(tmp_path)), Role.CLASSIFIER, classes=ONE, seed=s)()
        for s in (1, 1, 2)
    ]
    heads = [m.hf.score.weight for m in made]
    assert (
        heads[0].shape == (3, 32) and torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    )


def logits_of(rows: list[list[float]]) -> dict[str, Tensor]:
    return {Output.CLASSES.value: torch.tensor(rows, dtype=torch.float64)}


def told(parts: list[tuple[dict[str, Tensor], Batch]]) -> dict[str, float]:
    """As an evaluation adds it up."""
    algorithm = Classification()
    with torch.no_grad():
        sums = [algorithm.metrics(Role.CLASSIFIER, outputs, batch) for outputs, batch in parts]
    weight = sum(int(algorithm.weights(batch)[TERM]) for _, batch in parts)
    return algorithm.summary(
        {n.removesuffix(f"/{TERM}"): float(sum(s[n] for s in sums)) / weight for n in sums[0]}
    )


def batch_of(labels: list[Any], ids: list[int]) -> Batch:
    batch = make_batch([2] * len(ids), labels="none")
    assert VOCAB and (batch.labels == IGNORE_INDEX).all()
    return replace(
        batch, document_ids=torch.tensor(ids), extras={LABEL: torch.tensor(labels, dtype=torch.float64)}
    )


def test_accuracy_and_macro_f1_count_over_the_whole_set_without_fillers() -> None:
    said = [[3.0, 1, 0, 0], [0, 2, 1, 0], [0, 2, 0, 0], [1, 0, 0, 0], [9, 0, 0, 0]]  # 0 1 1 0, and a filler
    truth = [0.0, 1, 0, 0, 3]
    whole = told([(logits_of(said), batch_of(truth, [0, 1, 2, 3, -1]))])
    parts = told([(logits_of(said[i : i + 1]), batch_of(truth[i : i + 1], [i])) for i in range(4)])
    # class 0: TP 2, FN 1; class 1: TP 1, FP 1; class 2 and 3 neither occur nor are predicted
    expected = {"accuracy": 0.75, "macro_f1": (4 / 5 + 2 / 3) / 2}
    assert whole == pytest.approx(expected) and parts == pytest.approx(expected)


def test_of_several_classes_all_must_be_right() -> None:
    said = [[2.0, -1, 3], [-1, -1, -1], [1, 1, -1]]
    truth = [[1.0, 0, 1], [0, 0, 0], [1, 0, 1]]
    # class 0: TP 2; class 1: FP 1; class 2: TP 1, FN 1
    assert told([(logits_of(said), batch_of(truth, [0, 1, 2]))]) == pytest.approx(
        {"accuracy": 2 / 3, "macro_f1": (1 + 0 + 2 / 3) / 3}
    )
