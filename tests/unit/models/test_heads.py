"""The head in chunks equals plain logits and autograd: values, gradients, every ask, every kind of head."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from model_families import FAMILIES, build_family, make_batch, reference_logits
from support import swept
from torch import Tensor

from paceline.models.heads import chunked_cross_entropy
from paceline.models.heads.chunked_cross_entropy import ChunkedLogits, FusedNll, HeadShape, nll_sums
from paceline.models.heads.lm_head import Head
from paceline.models.heads.token_logprobs import KEPT_CHUNKS, RequiredStats, TokenStats
from paceline.protocols.batch import IGNORE_INDEX
from paceline.protocols.roles import Output

EVERYTHING = frozenset(Output) - {
    Output.SCORES,
    Output.VALUES,
    Output.HIDDEN,
    Output.DIVERGENCE,
    Output.CLASSES,
    Output.ROUTER,
}
ROWS, HIDDEN, VOCAB = 13, 6, 29
THREE_ROWS = 3 * VOCAB * 8  # bytes: chunks of three rows in fp64
SHAPES = [
    HeadShape(chunk_bytes=THREE_ROWS),
    HeadShape(0.5, None, THREE_ROWS),
    HeadShape(2.0, 3.0, THREE_ROWS),
    HeadShape(),
]


def _inputs(bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    labels = torch.randint(0, VOCAB, (ROWS,), generator=generator)
    return draw(ROWS, HIDDEN), draw(VOCAB, HIDDEN), draw(VOCAB) if bias else None, labels


def _plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: HeadShape) -> Tensor:
    logits = F.linear(hidden, weight, bias) * shape.scale
    return logits if shape.softcap is None else torch.tanh(logits / shape.softcap) * shape.softcap


def _same_gradients(loss: Tensor, expected: Tensor, parameters: list[Tensor]) -> None:
    ours = torch.autograd.grad(loss, parameters, retain_graph=True)
    theirs = torch.autograd.grad(expected, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_loss_equals_autograd(shape: HeadShape, bias: bool) -> None:
    hidden, weight, b, labels = _inputs(bias)
    total, right = FusedNll.apply(hidden, weight, b, labels, shape, True)
    logits = _plain(hidden, weight, b, shape)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(total, expected)
    assert int(right) == int((logits.argmax(-1) == labels).sum())
    assert torch.equal(torch.stack(nll_sums(hidden, weight, b, labels, shape, True))[1], right.double())
    torch.testing.assert_close(nll_sums(hidden, weight, b, labels, shape, False)[0], expected)
    _same_gradients(total * 0.37, expected * 0.37, [x for x in (hidden, weight, b) if x is not None])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chunk_in_blocks_and_a_loss_of_entropy_alone(
    shape: HeadShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_cross_entropy, "CACHE_BYTES", 2 * 4 * VOCAB)  # two rows at a time
    hidden, weight, _, labels = _inputs(False)
    logs = [torch.log_softmax(_plain(hidden, weight, None, shape), dim=-1) for _ in range(2)]
    _, entropy, _ = TokenStats.apply(hidden, weight, None, labels, shape, RequiredStats(entropy=True))
    _same_gradients(entropy.sum(), -(logs[0].exp() * logs[0]).sum(), [hidden, weight])
    logp, _, _ = TokenStats.apply(hidden, weight, None, labels, shape, RequiredStats())
    _same_gradients(logp.sum(), logs[1].gather(1, labels[:, None]).sum(), [hidden, weight])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_token_statistics_equal_autograd(shape: HeadShape, bias: bool) -> None:
    hidden, weight, b, labels = _inputs(bias)
    logp, entropy, right = TokenStats.apply(hidden, weight, b, labels, shape, RequiredStats(True, True))
    logs = torch.log_softmax(_plain(hidden, weight, b, shape), dim=-1)
    expected_logp = logs.gather(1, labels[:, None]).squeeze(1)
    expected_entropy = -(logs.exp() * logs).sum(-1)
    torch.testing.assert_close(logp, expected_logp)
    torch.testing.assert_close(entropy, expected_entropy)
    assert int(right) == int((logs.argmax(-1) == labels).sum())
    mix = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    ours = (logp * mix).sum() + (entropy * mix.flip(0)).sum()
    theirs = (expected_logp * mix).sum() + (expected_entropy * mix.flip(0)).sum()
    _same_gradients(ours, theirs, [x for x in (hidden, weight, b) if x is not None])


@pytest.mark.parametrize(
    ("rows", "chunks"), [(ROWS, 1), (5, 1), (3, 5)], ids=["one chunk", "three as one", "two of five"]
)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_logits_are_kept_once_and_as_many_as_there_is_room_for(
    rows: int, chunks: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, (hidden, weight, b, labels) = HeadShape(scale, None, rows * 8 * VOCAB), _inputs(True)
    assert b is not None
    products: list[int] = []
    raw = ChunkedLogits.raw
    monkeypatch.setattr(ChunkedLogits, "raw", lambda self, *a: (products.append(1), raw(self, *a))[1])
    logp, entropy, right = TokenStats.apply(hidden, weight, b, labels, shape, RequiredStats())
    assert not entropy.any() and int(right) == 0  # not asked for
    assert len(products) == chunks
    kept = 1 if chunks == 1 else KEPT_CHUNKS - 1
    expected = (
        torch.log_softmax(_plain(hidden, weight, b, shape), dim=-1).gather(1, labels[:, None]).squeeze(1)
    )
    mix, wanted = torch.linspace(-1, 2, ROWS, dtype=torch.float64), [hidden, weight, b]
    theirs = torch.autograd.grad((expected * mix).sum(), wanted)
    for again in (chunks - kept, chunks):  # a second backward through the same graph has nothing kept
        del products[:]
        ours = torch.autograd.grad((logp * mix).sum(), wanted, retain_graph=True)
        assert len(products) == again
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e)


def test_a_label_of_vanishing_probability_keeps_its_loss() -> None:
    weight = torch.zeros(4, 2)
    weight[0, 0] = 1.0
    hidden = torch.tensor([[200.0, 0.0], [1.0, 0.0]], requires_grad=True)
    total, _ = FusedNll.apply(hidden, weight, None, torch.tensor([1, 0]), HeadShape(), False)
    expected = F.cross_entropy(hidden @ weight.t(), torch.tensor([1, 0]), reduction="sum")
    assert float(expected.detach()) > 199
    torch.testing.assert_close(total, expected)


def test_no_gradient_is_formed_without_grad_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = build_family("llama"), make_batch()
    trained = module(batch, frozenset({Output.NLL, Output.CORRECT}))
    monkeypatch.setattr("paceline.models.heads.lm_head.FusedNll", None)  # must not be touched
    with torch.no_grad():
        seen = module(batch, frozenset({Output.NLL, Output.CORRECT}))
    torch.testing.assert_close(seen["nll"], trained["nll"].detach())
    assert int(seen["correct"]) == int(trained["correct"])


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma2", "gpt2", "phi"])
@pytest.mark.parametrize("ask", [frozenset({Output.NLL}), EVERYTHING])
def test_a_batch_without_labels_touches_every_parameter(family: str, ask: frozenset[Output]) -> None:
    module = build_family(family)
    out = module(make_batch(labels="none"), ask)
    assert float(out["nll"].detach()) == 0.0
    out["nll"].backward()
    for name, parameter in module.plain_named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize(("family", "labels"), swept(product(FAMILIES, ["all", "some", "none"]), 4))
def test_generic_head_equals_the_fused_one(family: str, labels: str) -> None:
    module, batch = build_family(family), make_batch(labels=labels)
    assert module.head.fused, module.head.reason
    fused = module(batch, EVERYTHING)
    module.head.fused = False
    module.head.chunk_bytes = 5 * 4 * 97
    generic = module(batch, EVERYTHING)
    assert set(fused) == set(generic) == {a.value for a in EVERYTHING}
    for name in fused:
        torch.testing.assert_close(generic[name], fused[name], rtol=1e-4, atol=1e-5)
    generic["nll"].backward()
    assert all(p.grad is not None for _, p in module.plain_named_parameters())


def test_a_head_that_is_not_what_its_config_says_is_not_fused() -> None:
    module, batch = build_family("llama"), make_batch()
    module.hf.config.logit_scale = 3.0  # Llama's class knows no such key
    head = Head(module.hf)
    assert not head.fused
    hidden = torch.randn(1, batch.labels.shape[1], 32)
    flat = batch.labels[0]
    places = (flat != IGNORE_INDEX).nonzero().squeeze(1)
    expected = F.cross_entropy(module.hf.lm_head(hidden[0, places]), flat[places], reduction="sum")
    torch.testing.assert_close(head(hidden, batch, frozenset({Output.NLL}))["nll"], expected)


def test_only_labelled_positions_reach_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = build_family("llama"), make_batch(labels="some")
    seen = []
    kernel = FusedNll.apply
    monkeypatch.setattr(
        FusedNll, "apply", lambda hidden, *rest: seen.append(hidden.shape[0]) or kernel(hidden, *rest)
    )
    module(batch, frozenset({Output.NLL}))
    assert seen == [int(batch.num_labels())]


def test_whole_model_loss_and_gradients_in_float64() -> None:
    module, batch = build_family("llama"), make_batch(labels="some")
    module.double()
    total = module(batch, frozenset({Output.NLL}))["nll"]
    labels = batch.labels[0]
    expected = F.cross_entropy(
        reference_logits(module.hf, batch), labels, ignore_index=IGNORE_INDEX, reduction="sum"
    )
    # Hugging Face's own norms pass through fp32
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-6)
    total.backward()
    expected.backward()
    other = dict(module.hf.reference[0].named_parameters())
    for name, parameter in module.plain_named_parameters():
        torch.testing.assert_close(parameter.grad, other[name].grad, rtol=1e-4, atol=1e-5, msg=name)


def test_low_precision_head_goes_over_its_chunk_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})  # products stay bf16
    monkeypatch.setattr(
        "paceline.models.heads.chunked_cross_entropy.CACHE_BYTES", 4 * VOCAB * 2
    )  # two rows a piece
    hidden, weight, _, labels = _inputs(False)
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    exact = [x.detach().float().requires_grad_() for x in low]
    total, right = FusedNll.apply(*low, None, labels, HeadShape(chunk_bytes=5 * VOCAB * 2), True)
    expected = F.cross_entropy(exact[0] @ exact[1].t(), labels, reduction="sum")
    assert total.dtype == torch.float32
    assert int(right) == int(((exact[0] @ exact[1].t()).argmax(-1) == labels).sum())
    torch.testing.assert_close(total, expected, rtol=1e-2, atol=1e-2)
    for ours, theirs in zip(
        torch.autograd.grad(total, low), torch.autograd.grad(expected, exact), strict=True
    ):
        assert float((ours.float() - theirs).norm() / theirs.norm()) < 0.02
