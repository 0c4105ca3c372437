"""bf16 and fp16 over fp32 masters: near autocast, fp32 gradients, copies refreshed in place, overflow
visible.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from model_families import FAMILIES, Source, build_family, make_batch, reference_logprobs
from support import swept
from tiny_families import tiny_config

from paceline.models.compute_dtype import ComputeLinear, compute_copy, product_dtype
from paceline.models.factory import HFModelFactory
from paceline.models.parallel.tensor_parallel_layers import experts_obstacle
from paceline.models.replace_forward import ComputeCopiesMixin, kept_forward
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output

NLL = frozenset({Output.NLL})
LOGPROBS = frozenset({Output.LOGPROBS})


@pytest.fixture(params=["native", "widened"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of making low-precision products, whatever this processor has."""
    able = {"avx512_bf16": True, "avx512_fp16": True} if request.param == "native" else {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    return str(request.param)


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "gemma", "phi"])
def test_bf16_is_as_near_to_fp32_as_autocast(instructions: str, family: str) -> None:
    exact, low, batch = (
        build_family(family),
        build_family(family, compute_dtype=torch.bfloat16),
        make_batch(labels="some"),
    )
    assert low.low_precision is not None and low.low_precision.cached, low.notes()
    assert product_dtype(torch.bfloat16, torch.device("cpu")) == (
        torch.bfloat16 if instructions == "native" else torch.float32
    )
    truth = exact(batch, LOGPROBS)["logprobs"].detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = reference_logprobs(exact.hf, batch).detach()
    ours = low(batch, LOGPROBS)["logprobs"].detach()
    assert ours.dtype == torch.float32
    assert float((ours - truth).abs().mean()) <= 3.0 * float((autocast - truth).abs().mean()) + 1e-2
    exact(batch, NLL)["nll"].backward()
    low(batch, NLL)["nll"].backward()
    for (name, a), (_, b) in zip(exact.plain_named_parameters(), low.plain_named_parameters(), strict=True):
        assert b.dtype == torch.float32 and b.grad is not None and b.grad.dtype == torch.float32, name
        assert a.grad is not None
        error = float((a.grad - b.grad).norm() / a.grad.norm().clamp_min(1e-6))
        assert error < 0.12, f"{name}: {error}"


@pytest.mark.parametrize("family", swept(FAMILIES, 3))
def test_every_family_runs_in_bf16(family: str) -> None:
    module = build_family(family, compute_dtype=torch.bfloat16)
    out = module(make_batch(), NLL)["nll"]
    assert out.dtype == torch.float32
    out.backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for _, p in module.plain_named_parameters())


def test_without_instructions_there_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    module = build_family("llama", compute_dtype=torch.bfloat16)
    assert all(compute_copy(p) is p for p in module.parameters())
    assert "products in fp32" in module.notes()["precision"]


def test_refresh_follows_the_masters_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    module, batch = build_family("llama", compute_dtype=torch.bfloat16), make_batch()
    weight = module.hf.model.layers[0].self_attn.q_proj.weight
    copy, before = compute_copy(weight), module(batch, NLL)["nll"].detach()
    with torch.no_grad():
        # norms read their fp32 weight itself
        for parameter in (p for p in module.parameters() if p.dim() > 1):
            parameter.mul_(1.5)
    assert torch.equal(module(batch, NLL)["nll"].detach(), before)
    module.refresh_compute_weights()
    assert compute_copy(weight) is copy
    assert torch.equal(copy, weight.detach().bfloat16())
    assert not torch.equal(module(batch, NLL)["nll"].detach(), before)


def test_fp16_overflow_reaches_the_gradients(instructions: str) -> None:
    module, batch = build_family("llama", compute_dtype=torch.float16), make_batch()
    (module(batch, NLL)["nll"] * 64.0).backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    module.zero_grad()
    (module(batch, NLL)["nll"] * 2.0**24).backward()
    assert not all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_a_model_of_unknown_parts_runs_under_autocast() -> None:
    module = HFModelFactory(Source(config=tiny_config("doge")), compute_dtype=torch.bfloat16)()
    assert module.low_precision is not None and not module.low_precision.cached
    assert "autocast" in module.notes()["precision"]
    assert not any(isinstance(m, ComputeLinear) for m in module.modules())


KEPT = ("gpt_oss", "mixtral", "qwen3_moe", "deepseek_v3", "llama4_text", "cohere", "falcon")


@pytest.mark.parametrize("kind", swept(KEPT, 2))
def test_a_kept_forward_reads_copies_and_its_masters_get_the_gradients(kind: str, instructions: str) -> None:
    """Fused experts, routers, sinks, norms and linear layers of a family's own."""
    source, batch = Source(config=tiny_config(kind)), make_batch(labels="some")
    exact, low = HFModelFactory(source)(), HFModelFactory(source, compute_dtype=torch.bfloat16)()
    low.hf.load_state_dict(exact.hf.state_dict())
    assert low.low_precision is not None and low.low_precision.cached
    low.refresh_compute_weights()
    kept = [m for m in low.modules() if isinstance(m, ComputeCopiesMixin)]
    assert kept
    losses = [module(batch, NLL)["nll"] for module in (exact, low)]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)
    for loss in losses:
        loss.backward()
    for (name, wide), narrow in zip(exact.hf.named_parameters(), low.hf.parameters(), strict=True):
        assert narrow.dtype is torch.float32 and (narrow.grad is None) == (wide.grad is None), name
        if wide.grad is not None and narrow.grad is not None:
            assert narrow.grad.dtype is torch.float32, name
            assert float((narrow.grad - wide.grad).norm()) < 0.15 * float(wide.grad.norm()) + 1e-3, name
    assert not any(vars(m).keys() & m._parameters.keys() for m in kept), "copies are read in a forward alone"


def test_experts_are_multiplied_in_low_precision(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 torch has no kernel for all experts at once on a card."""
    plain, seen = F.grouped_mm, set()

    def recorded(rows: torch.Tensor, weight: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        seen.add((rows.dtype, weight.dtype))
        return plain(rows, weight, **named)

    monkeypatch.setattr(F, "grouped_mm", recorded)
    module = HFModelFactory(Source(config=tiny_config("mixtral")), compute_dtype=torch.bfloat16)()
    module(make_batch(), NLL)["nll"].backward()
    assert seen == {(torch.bfloat16, torch.bfloat16) if instructions == "native" else (torch.float32,) * 2}


@pytest.mark.parametrize("engine_casts", [True, False])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "olmoe"])
def test_experts_that_read_copies_are_still_shared_over_ranks(kind: str, engine_casts: bool) -> None:
    source = Source(config=tiny_config(kind))
    factory = HFModelFactory(source, compute_dtype=torch.bfloat16)
    module = factory(BuildOptions(engine_casts=engine_casts))
    experts = [m for m in module.modules() if hasattr(m, "_apply_gate")]
    assert experts and all(isinstance(m, ComputeCopiesMixin) for m in experts)
    assert [experts_obstacle(m, 2) for m in experts] == [""] * len(experts)
    assert "Experts" in experts_obstacle(experts[0], 3) or "3 equal parts" in experts_obstacle(experts[0], 3)


def test_weights_that_a_class_keeps_in_fp32_are_read_in_fp32() -> None:
    """Flint's router: rounded, it sends 1.6 % of the tokens of a full-size model to other experts."""
    module = HFModelFactory(Source(config=tiny_config("flint")), compute_dtype=torch.bfloat16)()
    assert "Flint" in module.notes()["precision"] and "autocast" in module.notes()["precision"]


def test_code_from_the_hub_keeps_no_forward_by_its_name() -> None:
    class OtherExperts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 2))

    class OtherNorm(OtherExperts):
        pass

    assert kept_forward(OtherExperts()) is kept_forward(OtherNorm()) is None


def test_adapters_on_a_model_with_kept_forwards_have_copies(instructions: str) -> None:
    """The frozen rest was swapped before, so that it arrives in low precision."""
    adapter = AdapterSpec(r=3, alpha=6.0, target_modules=("all-linear",))
    module = HFModelFactory(
        Source(config=tiny_config("mixtral")), compute_dtype=torch.bfloat16, adapter=adapter
    )()
    assert module.low_precision is not None and module.low_precision.cached
    trained = [p for p in module.parameters() if p.requires_grad]
    wanted = torch.bfloat16 if instructions == "native" else torch.float32
    assert trained and all(compute_copy(p).dtype is wanted for p in trained)
    module(make_batch(), NLL)["nll"].backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in trained)


def test_frozen_experts_are_kept_in_low_precision_alone(instructions: str) -> None:
    module = HFModelFactory(
        Source(config=tiny_config("qwen3_moe")), compute_dtype=torch.bfloat16, frozen=True
    )()
    [experts, *_] = [m for m in module.modules() if hasattr(m, "_apply_gate")]
    expected = torch.bfloat16 if instructions == "native" else torch.float32
    assert experts.gate_up_proj.dtype is expected


def test_state_dict_names_do_not_change() -> None:
    low, plain = build_family("llama", compute_dtype=torch.bfloat16), build_family("llama")
    assert list(low.hf.state_dict()) == list(plain.hf.state_dict())
    assert all(v.dtype == torch.float32 for v in low.hf.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["modernbert-decoder", "openai-gpt"])
def test_a_layer_before_the_head_and_a_mask_of_numbers_end_no_run_in_low_precision(
    kind: str, dtype: torch.dtype
) -> None:
    """ModernBERT's decoder has a layer between trunk and head, GPT multiplies scores by a mask: each ended
    the first forward in an error about dtypes.
    """
    source, batch = Source(config=tiny_config(kind)), make_batch(labels="some")
    exact, low = HFModelFactory(source)(), HFModelFactory(source, compute_dtype=dtype)()
    truth, found = (float(module.eval()(batch, NLL)["nll"].detach()) for module in (exact, low))
    assert abs(found - truth) < 0.02 * truth
    low.train()(batch, NLL)["nll"].backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in low.hf.parameters())
