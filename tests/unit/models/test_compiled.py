"""Decoder layers compiled by torch.compile: one graph for all layers of a kind and all lengths, the
same losses and gradients; what cannot be traced runs as it is and says so.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from model_families import build_family, make_batch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from paceline.models.attention import compiled_attention
from paceline.models.attention.compiled_attention import document_flash, document_scores
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    CpuDocuments,
    DocumentOptions,
    documents_generic,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.role_module import RoleModule
from paceline.plan.model.kernels import PADDED_SDPA
from paceline.plan.plan import AdapterSpec
from paceline.protocols.roles import Output, Role

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # from dynamo itself
]
NLL = frozenset({Output.NLL})
EAGER = {"compile": True, "compile_options": {"backend": "eager"}}
slow, full = pytest.mark.slow, pytest.mark.full
FAMILIES = [
    ("llama", 1),
    ("gemma2", 2),  # layers with and without a window
    pytest.param("gpt_oss", 2, marks=full),
    pytest.param("bloom", 1, marks=full),  # padded rows
    *(
        pytest.param(name, 2 if name == "qwen2_window" else 1, marks=slow)
        for name in (
            "llama_tied",
            "qwen2",
            "qwen2_window",
            "qwen3",
            "mistral",
            "gemma",
            "gemma3",
            "phi3",
            "phi",
            "cohere",
            "granite",
            "gpt2",
            "gpt_neox",
        )
    ),
]


def _lengths(count: int) -> list[tuple[int, ...]]:
    """Batches of two to five documents; the first has as many tokens as the model has features."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        tuple(torch.randint(2, 15, (2 + i % 4,), generator=generator).tolist()) for i in range(count - 1)
    ]
    return [(20, 12), *drawn]


def _difference(plain: RoleModule, compiled: RoleModule, batches: int = 8) -> tuple[float, float, list[int]]:
    """The largest relative difference of a loss and of a gradient, and the graphs after each batch."""
    torch._dynamo.reset()
    counters.clear()
    losses, graphs = 0.0, []
    for seed, lengths in enumerate(_lengths(batches)):
        batch = make_batch(lengths, seed=seed)
        expected, found = (model(batch, NLL)["nll"].sum() for model in (plain, compiled))
        losses = max(losses, float((expected - found).detach().abs() / expected.detach().abs()))
        expected.backward()
        found.backward()
        graphs.append(counters["stats"]["unique_graphs"])
    pairs = zip(plain.plain_named_parameters(), compiled.plain_named_parameters(), strict=True)
    grads = [
        float((a.grad - b.grad).norm() / a.grad.norm().clamp_min(1e-3))
        for (_, a), (_, b) in pairs
        if a.grad is not None and b.grad is not None
    ]
    return losses, max(grads), graphs


@pytest.mark.parametrize(("family", "kinds"), FAMILIES)
def test_a_graph_a_kind_of_layer_serves_every_length(family: str, kinds: int) -> None:
    """Twenty batches of other lengths and numbers of documents, none of which compiles anew."""
    compiled = build_family(family, **EAGER)
    losses, grads, graphs = _difference(build_family(family), compiled, 20)
    assert graphs == [kinds] * 20 and not counters["graph_break"]
    assert losses < 2e-6 and grads < 1e-5
    assert "2 decoder layers by torch.compile" in compiled.notes()["compile"]


LORA = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",))


@pytest.mark.parametrize(
    "options",
    [{"recompute": True}, {"role": Role.REWARD}, pytest.param({"adapter": LORA}, marks=full)],
    ids=["again", "reward", "lora"],
)
def test_with_recomputation_a_scalar_head_and_adapters(options: dict[str, Any]) -> None:
    if options.get("role"):
        plain, compiled = build_family("llama", **options), build_family("llama", **options, **EAGER)
        for seed, lengths in enumerate(_lengths(4)):
            batch = make_batch(lengths, seed=seed)
            scores = [model(batch, frozenset({Output.SCORES}))["scores"] for model in (plain, compiled)]
            torch.testing.assert_close(*scores, rtol=2e-6, atol=2e-6)
        return
    plain, compiled = build_family("llama", **options), build_family("llama", **options, **EAGER)
    losses, grads, graphs = _difference(plain, compiled)
    assert losses < 2e-6 and grads < 1e-5 and len(set(graphs)) == 1
    if "adapter" in options:  # the base alone is another graph, of the same layers
        batch = make_batch((5, 6))
        with compiled.without_adapter(), plain.without_adapter():
            torch.testing.assert_close(compiled(batch, NLL)["nll"], plain(batch, NLL)["nll"])


@pytest.mark.parametrize(
    ("family", "kinds"),
    [("llama", 1), pytest.param("gpt_oss", 2, marks=full), pytest.param("cohere", 1, marks=full)],
)
def test_in_bf16_within_its_rounding(family: str, kinds: int) -> None:
    """The last two read copies in the forwards of their own classes."""
    how = {"compute_dtype": torch.bfloat16}
    made = build_family(family, **how, **EAGER)
    losses, _, graphs = _difference(build_family(family, **how), made)
    assert losses < 1e-3 and graphs == [kinds] * 8, made.notes()["compile"]


def test_differentiated_by_aot_autograd() -> None:
    made = build_family("llama", compile=True, compile_options={"backend": "aot_eager"})
    losses, grads, graphs = _difference(build_family("llama"), made)
    assert losses < 2e-6 and grads < 1e-5 and graphs == [1] * 8


@slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_config, "compile_threads", 1)  # torch's pool of threads stays
    losses, grads, graphs = _difference(build_family("llama"), build_family("llama", compile=True))
    assert losses < 2e-6 and grads < 1e-5 and graphs == [1] * 8


def test_the_padded_kernel_of_devices_is_traced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_attention, "traced_kernel", lambda *_: PADDED_SDPA)
    compiled = build_family("llama", **EAGER)
    losses, grads, graphs = _difference(build_family("llama"), compiled)
    assert losses < 2e-6 and grads < 1e-5 and graphs == [1] * 8
    assert PADDED_SDPA in compiled.notes()["attention"]


def test_a_layer_that_cannot_be_traced_runs_as_it_is_and_says_so() -> None:
    plain, compiled = build_family("llama"), build_family("llama", **EAGER)
    mlp = type(compiled.hf.base_model.layers[0].mlp)

    class Printing(mlp):  # type: ignore[valid-type, misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    for layer in compiled.hf.base_model.layers:
        layer.mlp.__class__ = Printing
    losses, _, graphs = _difference(plain, compiled, 2)
    assert losses == 0 and graphs == [0, 0]
    assert compiled.notes()["compile"].startswith("uncompiled: torch.compile cannot trace")


def test_decoding_is_not_compiled() -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = build_family("llama", **EAGER)
    ids = torch.tensor([[3, 4, 5]])
    said = compiled.hf.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert said.shape == (1, 7) and not counters["stats"]["unique_graphs"]


def _draw(*size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()


BOUNDS = (0, 3, 4, 11)


@pytest.mark.parametrize(
    ("window", "softcap", "sinks"), [(3, None, False), (None, 2.0, False), (3, 5.0, True), (None, None, True)]
)
def test_scores_and_their_gradients_are_those_of_autograd(
    window: int | None, softcap: float | None, sinks: bool
) -> None:
    q, k, v = _draw(1, 4, 11, 8), _draw(1, 2, 11, 8), _draw(1, 2, 11, 6)
    own = _draw(4) if sinks else None
    given = [q, k, v, *([own] if own is not None else [])]
    bounds = torch.tensor(BOUNDS)
    layout = PackedSequenceInfo.over(BOUNDS, q.device)
    expected = documents_generic(
        q, k, v, layout, AttentionOptions(0.3, window=window, softcap=softcap, sinks=own)
    )
    found = document_scores(q, k, v, own, bounds, 0.3, window, softcap)
    torch.testing.assert_close(found, expected)
    upstream = _draw(1, 4, 11, 6).detach()
    for a, b in zip(
        torch.autograd.grad(found, given, upstream),
        torch.autograd.grad(expected, given, upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bounds", [BOUNDS, (0, 4, 8, 12)])
def test_the_operator_of_the_flash_kernel_has_its_bits(bounds: tuple[int, ...]) -> None:
    tokens = bounds[-1]
    q, k, v = (_draw(1, tokens, heads, 8).transpose(1, 2) for heads in (4, 2, 2))
    upstream = _draw(1, 4, tokens, 8).detach()
    expected = CpuDocuments.apply(q, k, v, DocumentOptions(bounds, 0.3, torch.float64))
    found, _ = document_flash(q, k, v, torch.tensor(bounds), 0.3)
    assert torch.equal(found, expected)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v), upstream),
        torch.autograd.grad(expected, (q, k, v), upstream),
        strict=True,
    ):
        assert torch.equal(a, b)
