"""Layers that pass a state from token to token see one document at a time: packed rows equal each document
alone through Transformers, to 1e-10 in float64, and a neighbour changes neither a loss nor a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from model_families import Source, make_batch, reference_logprobs, spread_out
from tiny_families import tiny_config
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.models.attention import padded_documents
from paceline.models.attention.padded_documents import DocumentsByLength, grouped
from paceline.models.factory import HFModelFactory
from paceline.models.recurrent_layers import has_state, state_layers
from paceline.models.role_module import RoleModule
from paceline.plan.model.family import families
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output

# one a kind of layer: the delta rule, a state space, a short convolution, lightning attention
FEW = ("qwen3_5_text", "granitemoehybrid", "lfm2_moe", "minimax")
OTHERS = sorted(kind for kind, row in families().items() if row.carries and row.rows == "packed")
KINDS = [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS if kind not in FEW)]
LENGTHS = (5, 12, 3, 12, 7)  # three groups, and two documents of one length
LOGPROBS = frozenset({Output.LOGPROBS})


class Wide(TorchFunctionMode):
    """float64 wherever a model's code narrows to float32 for its state."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call ``func`` with float64 in place of float32."""
        if func is Tensor.float:
            func = Tensor.double
        if func.__name__.endswith("grouped_mm"):  # torch has none of float64
            ends = kwargs["offs"].tolist()
            parts = zip(args[0].split([b - a for a, b in pairwise([0, *ends])]), args[1], strict=True)
            return torch.cat([part @ weight for part, weight in parts])
        wide = [torch.float64 if x is torch.float32 else x for x in args]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        if func is torch.full and isinstance(wide[1], float):  # float32 does not hold float64's extremes
            named.setdefault("dtype", torch.float64)
        return func(*wide, **named)


@pytest.fixture(autouse=True)
def groups_of_short_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_documents, "CHUNK", 1)


@pytest.fixture
def wide() -> Iterator[None]:
    with Wide():
        yield


def build(kind: str, **options: Any) -> RoleModule:
    double: dict[str, Any] = {"master_dtype": torch.float64, "compute_dtype": torch.float64}
    module = HFModelFactory(Source(config=tiny_config(kind)), **{**double, **options})()
    spread_out(module)
    return module.train()


def gradients(module: RoleModule, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.plain_named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_is_each_document_alone(kind: str) -> None:
    module, batch = build(kind), make_batch(LENGTHS, labels="some")
    assert module.attention.layout == "packed" and module.carries_state
    expected = reference_logprobs(module.hf, batch)
    got = module(batch, LOGPROBS)["logprobs"]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    found = gradients(module, got.sum())
    expected.sum().backward()
    for name, parameter in module.hf.reference[0].named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_changes_no_loss_and_no_gradient(kind: str) -> None:
    module, one, other = build(kind), make_batch((6, 9, 4), seed=1), make_batch((6, 9, 4), seed=2)
    mixed = one.input_ids.clone()
    mixed[:, :6], mixed[:, 15:] = other.input_ids[:, :6], other.input_ids[:, 15:]
    changed = Batch(mixed, one.labels, one.position_ids, one.cu_seqlens, 9, one.document_ids, 3)
    found = []
    for batch in (one, changed):
        logs = module(batch, LOGPROBS)["logprobs"]
        found.append((logs, gradients(module, logs[5:13].sum())))
    (a, mine), (b, theirs) = found
    torch.testing.assert_close(a[5:13], b[5:13], rtol=0, atol=1e-12)
    assert not torch.allclose(a[:5], b[:5], atol=1e-3)
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm2_moe"])
def test_recomputation_changes_nothing(kind: str) -> None:
    single = {"master_dtype": torch.float32, "compute_dtype": torch.float32}
    plain, again = build(kind, **single), build(kind, recompute=True, **single)
    batches = make_batch(LENGTHS, seed=3), make_batch((4, 8), seed=4)
    found = []
    for module in (plain, again):
        # both forwards before the first backward: layouts must not mix
        losses = [module(batch, LOGPROBS)["logprobs"].sum() for batch in batches]
        found.append(gradients(module, sum(losses)))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-6, msg=name)


def test_layers_with_state_are_compiled_by_none_and_said() -> None:
    module, batch = build("qwen3_5_text", compile=True, compile_options={"backend": "eager"}), make_batch()
    plain = build("qwen3_5_text")
    with torch.no_grad():
        expected, got = (m(batch, LOGPROBS)["logprobs"] for m in (plain, module))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    said = module.notes()["compile"]
    assert said.startswith("1 decoder layers by torch.compile") and "1 that pass a state" in said


def test_a_model_of_attention_alone_has_none() -> None:
    module = build("llama")
    assert not list(state_layers(module.hf)) and not has_state(module.hf)


def test_groups_hold_every_document_once_and_waste_little() -> None:
    lengths = torch.randint(1, 999, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = grouped(lengths)
    assert sorted(sum(groups, [])) == list(range(60))
    for group in groups:
        assert lengths[group[0]] == max(lengths[i] for i in group)
        assert min(lengths[i] for i in group) >= padded_documents.SHORTEST * lengths[group[0]]


@pytest.mark.parametrize("lengths", [(5, 12, 3, 12, 7), (4, 4, 4), (9,), (1, 30, 1, 29, 2)])
def test_tokens_come_back_to_their_places(lengths: tuple[int, ...]) -> None:
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    places = DocumentsByLength.of(bounds, torch.device("cpu"))
    x = torch.randn(bounds[-1], 3, dtype=torch.float64, requires_grad=True)
    rows = places.rows(x)
    assert [tuple(part.shape[:2]) for part in rows] == list(places.sizes)
    torch.testing.assert_close(places.flat(rows), x, rtol=0, atol=0)
    firsts = sorted(row[0].tolist() for part in rows for row in part)
    assert firsts == sorted(x[start].tolist() for start in bounds[:-1])
    weight = torch.randn(bounds[-1], 3, dtype=torch.float64)
    (places.flat([part * 2 for part in rows]) * weight).sum().backward()
    torch.testing.assert_close(x.grad, 2 * weight, rtol=0, atol=0)
