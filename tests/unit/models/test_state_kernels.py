"""Packages with kernels for layers with state, stood in for: they get the boundaries of documents where all
of a layer's take them, and their results are each document alone.

The stand-ins record what they are given and compute by Transformers' own functions, document by document;
the packages themselves never ran here (they need a GPU).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from model_families import make_batch, reference_logprobs
from test_state_layers import LENGTHS, LOGPROBS, Wide, build
from torch import Tensor
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from paceline.models.recurrent_layers import PerDocumentLayer

Calls = list[tuple[str, dict[str, Any]]]
ENDS = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)
INDEX = torch.arange(len(LENGTHS), dtype=torch.int32).repeat_interleave(torch.tensor(LENGTHS))[None]


def convolution(own: Callable[..., Tensor], calls: Calls) -> Callable[..., Tensor]:
    """causal-conv1d's function: x [1, C, T] last but one in memory, or it refuses ``seq_idx``."""

    def causal_conv1d_fn(
        x: Tensor, weight: Tensor, bias: Any = None, seq_idx: Any = None, activation: Any = None
    ) -> Tensor:
        calls.append(("causal_conv1d_fn", {"seq_idx": seq_idx}))
        assert x.stride(1) == 1 and seq_idx.dtype is torch.int32 and seq_idx.shape == (1, x.shape[-1])
        parts = [x[..., seq_idx[0] == i] for i in seq_idx.unique()]
        return torch.cat([own(part, weight, bias, activation=activation) for part in parts], -1)

    return causal_conv1d_fn


def delta_rule(own: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """flash-linear-attention's function: q, k, v, … [1, T, …]."""

    def chunk(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Any = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Any = None,
    ) -> tuple[Tensor, None]:
        calls.append(("chunk", {"cu_seqlens": cu_seqlens}))
        cuts = [slice(a, b) for a, b in pairwise(cu_seqlens.tolist())]
        outs = [
            own(*(x[:, cut] for x in (q, k, v)), g=g[:, cut], beta=beta[:, cut], use_qk_l2norm_in_kernel=True)
            for cut in cuts
        ]
        return torch.cat([out[0] for out in outs], 1), None

    return chunk


def scan(own: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """mamba-ssm's function."""

    def mamba_chunk_scan_combined(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Any = None,
        dt_bias: Any = None,
        dt_softplus: bool = False,
        dt_limit: Any = (0.0, float("inf")),
        seq_idx: Any = None,
    ) -> Tensor:
        calls.append(("scan", {"seq_idx": seq_idx}))
        more = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
        cuts = [seq_idx[0] == i for i in seq_idx.unique()]
        parts = [own(x[:, c], dt[:, c], A, B[:, c], C[:, c], chunk_size=chunk_size, **more) for c in cuts]
        return torch.cat(parts, 1)

    return mamba_chunk_scan_combined


def whole(own: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """mamba-ssm's function of convolution, scan, norm and projection: here it leaves them to the others."""

    def mamba_split_conv1d_scan_combined(*args: Any, seq_idx: Any = None, **kwargs: Any) -> None:
        calls.append(("whole", {"seq_idx": seq_idx}))

    return mamba_split_conv1d_scan_combined


MAKERS = {
    "causal_conv1d_fn": ("causal_conv1d", convolution),
    "torch_chunk_gated_delta_rule": ("fla", delta_rule),
    "chunk_kimi_delta_attention": ("fla", delta_rule),
    "mamba2_chunk_scan": ("mamba_ssm", scan),
    "mamba2_split_conv1d_scan_combined": ("mamba_ssm", whole),
}


def install(monkeypatch: pytest.MonkeyPatch, modeling: str, names: list[str]) -> Calls:
    """Put stand-ins behind functions of a model's module, by Transformers' own decorator."""
    module, calls = importlib.import_module(f"transformers.models.{modeling}"), Calls()
    for name in names:
        package, make = MAKERS[name]
        own = getattr(module, name)
        stand_in = ModuleType(package)
        vars(stand_in)["kernel"] = make(own, calls)
        monkeypatch.setitem(sys.modules, package, stand_in)
        monkeypatch.setattr(module, name, use_kernel_func_from_hub_with_fallback("kernel", package)(own))
    return calls


CASES = {
    "qwen3_5_text": ("qwen3_5.modeling_qwen3_5", ["causal_conv1d_fn", "torch_chunk_gated_delta_rule"]),
    "kimi_linear": ("kimi_linear.modeling_kimi_linear", ["causal_conv1d_fn", "chunk_kimi_delta_attention"]),
    "lfm2": ("lfm2.modeling_lfm2", ["causal_conv1d_fn"]),
    "falcon_h1": (
        "falcon_h1.modeling_falcon_h1",
        ["mamba2_split_conv1d_scan_combined", "causal_conv1d_fn", "mamba2_chunk_scan"],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_kernels_that_take_boundaries_get_the_packed_row(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, *CASES[kind])
    with Wide():
        module, batch = build(kind), make_batch(LENGTHS, labels="some")
        got = module(batch, LOGPROBS)["logprobs"]
        got.sum().backward()
        monkeypatch.undo()
        expected = reference_logprobs(module.hf, batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    layers = [m for m in module.hf.modules() if isinstance(m, PerDocumentLayer)]
    assert len(calls) == len(layers) * len(CASES[kind][1])
    for _, given in calls:
        for name, value in given.items():
            assert torch.equal(value, ENDS if name == "cu_seqlens" else INDEX)
    assert "take the documents' boundaries" in module.notes()["layers with state"]


def test_a_layer_with_a_kernel_that_takes_none_gets_one_document_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the convolution's package is installed: the scan is Transformers', which refuses boundaries."""
    install(monkeypatch, "qwen3_5.modeling_qwen3_5", ["causal_conv1d_fn"])
    module = build("qwen3_5_text")
    assert all(m.ends is None for m in module.hf.modules() if isinstance(m, PerDocumentLayer))
    assert "padded rows" in module.notes()["layers with state"]
