"""The divergence from a teacher, a chunk at a time, equals TRL's formula on whole logits and its autograd
gradients.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from model_families import build_family, make_batch, reference_logits
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.models.heads.chunked_cross_entropy import ChunkedLogits, HeadShape
from paceline.models.heads.distillation_divergence import (
    FusedDivergence,
    TeacherHead,
    TeacherRows,
    divergence_rows,
    divergence_sum,
)
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import TEACHER, Divergence, Output

HOW = [
    Divergence(b, t)
    for b, t in ((0.0, 1.0), (0.0, 2.0), (1.0, 1.0), (1.0, 0.7), (0.5, 1.0), (0.1, 1.5), (0.9, 0.9))
]
ROWS, VOCAB = 13, 29


def trl(student: Tensor, teacher: Tensor, how: Divergence) -> Tensor:
    """[r]: TRL 1.16, ``GKDTrainer.generalized_jsd_loss``, before its reduction and its sum over the
    vocabulary.
    """
    s, t = (F.log_softmax(x / how.temperature, dim=-1) for x in (student, teacher))
    if how.beta == 0:
        return F.kl_div(s, t, reduction="none", log_target=True).sum(-1)
    if how.beta == 1:
        return F.kl_div(t, s, reduction="none", log_target=True).sum(-1)
    beta = torch.tensor(how.beta, dtype=s.dtype)
    mixture = torch.logsumexp(torch.stack([s + torch.log1p(-beta), t + torch.log(beta)]), dim=0)
    to_teacher, to_student = (F.kl_div(mixture, x, reduction="none", log_target=True) for x in (t, s))
    return (beta * to_teacher + (1 - beta) * to_student).sum(-1)


def draw(*size: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_values_and_slopes_are_those_of_trls_formula(how: Divergence) -> None:
    student, teacher = draw(ROWS, VOCAB, scale=3.0).requires_grad_(), draw(ROWS, VOCAB, seed=1, scale=3.0)
    expected = trl(student, teacher, how)
    (slopes,) = torch.autograd.grad(expected.sum(), student)
    found, ours = divergence_rows(student.detach(), teacher, how)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours, slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "shape", [HeadShape(), HeadShape(0.5), HeadShape(2.0, 3.0)], ids=["plain", "scaled", "capped"]
)
@pytest.mark.parametrize("teacher_rows", [VOCAB, VOCAB + 4, VOCAB - 3])
@pytest.mark.parametrize("chunk", [8 * VOCAB * 4 * 3, 1 << 20], ids=["three rows a chunk", "one chunk"])
def test_chunks_add_up_whatever_the_heads(shape: HeadShape, teacher_rows: int, chunk: int) -> None:
    shape, how, common = replace(shape, chunk_bytes=chunk), Divergence(0.3, 1.2), min(VOCAB, teacher_rows)
    hidden, weight, bias = (
        draw(ROWS, 6).requires_grad_(),
        draw(VOCAB, 6, seed=1).requires_grad_(),
        draw(VOCAB, seed=2).requires_grad_(),
    )
    states, other = draw(ROWS, 5, seed=3), draw(teacher_rows, 5, seed=4)
    teacher = TeacherRows(None, states, ChunkedLogits(states, other, None, HeadShape()))  # type: ignore[arg-type]
    logits = F.linear(hidden, weight, bias) * shape.scale
    logits = logits if shape.softcap is None else torch.tanh(logits / shape.softcap) * shape.softcap
    expected = trl(logits[:, :common], F.linear(states, other)[:, :common], how).sum()
    found = FusedDivergence.apply(hidden, weight, bias, shape, teacher, how)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(divergence_sum(hidden, weight, bias, shape, teacher, how), expected.detach())
    ours, theirs = (torch.autograd.grad(2.5 * x, (hidden, weight, bias)) for x in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def asked(student: RoleModule, teacher: RoleModule, batch: Batch, how: Divergence) -> Tensor:
    """As a run asks them: the teacher's states go with the batch."""
    if student._comparison is None:
        student.compare_with(teacher, how)
    with torch.no_grad():
        states = teacher(batch, frozenset({Output.HIDDEN}))[Output.HIDDEN.value]
    known = replace(batch, tokens={TEACHER: states})
    return student(known, frozenset({Output.DIVERGENCE}))[Output.DIVERGENCE.value]


@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize(
    ("family", "taught_by"), [("gemma2", "llama"), ("llama_tied", "granite"), ("gpt2", "gemma2")]
)
def test_two_models_give_what_their_whole_logits_give(family: str, taught_by: str, own_heads: bool) -> None:
    student, teacher = (
        build_family(name, master_dtype=torch.float64, compute_dtype=torch.float64)
        for name in (family, taught_by)
    )
    teacher.requires_grad_(False)
    if own_heads:
        student.head.fused = teacher.head.fused = False
        student.head.chunk_bytes = teacher.head.chunk_bytes = 4 * 97 * 5
    batch, how = make_batch(labels="some"), Divergence(0.4, 1.3)
    places = batch.labels[0] != IGNORE_INDEX
    hidden = student(batch, frozenset({Output.HIDDEN}))[Output.HIDDEN.value][0, places]
    logits = student.head.own_logits(hidden)  # by the Hugging Face class
    torch.testing.assert_close(logits, reference_logits(student.hf, batch)[places], rtol=1e-4, atol=1e-5)
    expected = trl(logits, reference_logits(teacher.hf, batch)[places], how).sum()
    found = asked(student, teacher, batch, how)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    parameters = [p for _, p in student.plain_named_parameters()]
    for a, b in zip(*(torch.autograd.grad(x, parameters) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(asked(student, teacher, batch, how), found.detach())
    nothing = asked(student, teacher, make_batch(labels="none"), how)
    nothing.backward()
    assert float(nothing.detach()) == 0.0 and all(p.grad is not None and not p.grad.any() for p in parameters)


def test_a_head_that_an_engine_shares_out_is_kept_from_the_teachers_first_forward() -> None:
    student, teacher = build_family("llama"), build_family("granite").requires_grad_(False)
    assert isinstance(student, RoleModule) and isinstance(teacher, RoleModule)
    batch, how = make_batch(), Divergence()
    student.compare_with(teacher, how)
    first = asked(student, teacher, batch, how)
    assert teacher._lent is not None and not teacher._lent._copies, "whole weights are not copied"
    teacher._lent._whole = False
    torch.testing.assert_close(asked(student, teacher, batch, how), first)
    weight = teacher.hf.get_output_embeddings().weight
    with torch.no_grad():
        weight.zero_()  # as an engine frees it behind the forward
    torch.testing.assert_close(asked(student, teacher, batch, how), first)


def test_a_class_with_a_head_of_its_own_teaches_only_whole() -> None:
    head = build_family("llama").head
    head.fused = False
    TeacherHead(head)
    head.linear.weight = torch.nn.Parameter(torch.empty(0))  # as ZeRO-3 leaves it between two forwards
    with pytest.raises(ConfigError, match="a head of several layers"):
        TeacherHead(head)
