"""Distillation: sums over all tokens whatever the split, the share of the SFT loss, and a teacher that
learns nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from model_families import build_family, make_batch

from paceline.algorithms.supervised.distillation import SFT_TERM, TERM, Distillation
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role


def two_models() -> tuple[RoleModule, RoleModule]:
    double: dict[str, Any] = {"master_dtype": torch.float64, "compute_dtype": torch.float64}
    return build_family("llama", **double), build_family("gemma2", **double).requires_grad_(False)


def step(
    algorithm: Distillation, student: RoleModule, teacher: RoleModule, batch: Batch
) -> dict[str, torch.Tensor]:
    """As a runner does it."""
    for role in algorithm.reference_roles:
        with torch.no_grad():
            batch = algorithm.attach_outputs(
                role, teacher(batch, algorithm.required_outputs(role, training=False)), batch
            )
    return dict(
        algorithm.losses(
            Role.POLICY, student(batch, algorithm.required_outputs(Role.POLICY, training=True)), batch
        )
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_documents_alone_or_together_have_the_same_sums_and_gradients(alpha: float) -> None:
    algorithm, (student, teacher) = Distillation(beta=0.2, alpha=alpha), two_models()
    student.compare_with(teacher, algorithm.compares)
    whole = make_batch((5, 12, 3, 9), labels="some")
    bounds = whole.cu_seqlens.tolist()
    parts = []
    for a, b, c in ((0, 1, 1), (1, 3, 2), (3, 4, 1)):
        place = slice(bounds[a], bounds[b])
        cut = {n: getattr(whole, n)[:, place] for n in ("input_ids", "labels", "position_ids")}
        edges = whole.cu_seqlens[a : b + 1] - bounds[a]
        parts.append(
            replace(
                whole, **cut, cu_seqlens=edges, document_ids=whole.document_ids[a:b], num_rows=c, shared=()
            )
        )  # type: ignore[arg-type]
    parameters = [p for _, p in student.plain_named_parameters()]
    sums, gradients, weights = [], [], []
    for batches in ([whole], parts):
        found = [step(algorithm, student, teacher, batch) for batch in batches]
        total = {name: sum(one[name] for one in found) for name in found[0]}
        gradients.append(torch.autograd.grad(sum(total.values()), parameters))  # type: ignore[arg-type]
        sums.append({name: float(value.detach()) for name, value in total.items()})  # type: ignore[union-attr]
        weights.append({n: sum(int(algorithm.weights(b)[n]) for b in batches) for n in total})
    assert sums[0] == pytest.approx(sums[1], rel=1e-9) and sums[0][TERM] > 0.1
    assert weights[0] == weights[1] == dict.fromkeys(sums[0], int(whole.num_labels()))
    assert set(sums[0]) == ({TERM, SFT_TERM} if alpha else {TERM})
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


def test_alpha_shares_the_loss_between_teacher_and_labels() -> None:
    student, teacher = two_models()
    batch, alone = make_batch(), Distillation()
    student.compare_with(teacher, alone.compares)
    divergence = step(alone, student, teacher, batch)[TERM]
    nll = student(batch, frozenset({Output.NLL}))[Output.NLL.value]
    found = step(Distillation(alpha=0.25), student, teacher, batch)
    assert float(found[TERM].detach()) == pytest.approx(0.75 * float(divergence.detach()))
    assert float(found[SFT_TERM].detach()) == pytest.approx(0.25 * float(nll.detach()))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(beta: float) -> None:
    student, _ = two_models()
    algorithm, batch = Distillation(beta=beta, temperature=0.7), make_batch()
    student.compare_with(student, algorithm.compares)
    found = step(algorithm, student, student, batch)[TERM]
    found.backward()
    assert float(found.detach()) == pytest.approx(0.0, abs=1e-9)
    assert all(
        p.grad is not None and float(p.grad.abs().max()) < 1e-9 for _, p in student.plain_named_parameters()
    )


def test_an_evaluation_tells_the_students_own_loss_and_accuracy() -> None:
    student, teacher = two_models()
    algorithm, batch = Distillation(), make_batch()
    student.compare_with(teacher, algorithm.compares)
    with torch.no_grad():
        known = algorithm.attach_outputs(Role.TEACHER, teacher(batch, frozenset({Output.HIDDEN})), batch)
        outputs = student(known, algorithm.required_outputs(Role.POLICY, training=False))
        plain = student(batch, frozenset({Output.NLL, Output.CORRECT}))
    found = algorithm.metrics(Role.POLICY, outputs, known)
    assert float(found[f"nll/{TERM}"]) == pytest.approx(float(plain[Output.NLL.value]))
    assert int(found[f"token_accuracy/{TERM}"]) == int(plain[Output.CORRECT.value])
