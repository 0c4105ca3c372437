"""LoRA in a model: what is trained, under which names, that kernels give way, what merging gives; 4-bit
layers that go on learning.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source, make_batch
from safetensors.torch import save_file
from tiny_families import tiny_config

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.fused_layers.qkv_rotary import FusedAttention
from paceline.models.fused_layers.rms_norm import FusedRMSNorm
from paceline.models.fused_layers.swiglu import FusedSwiGLU
from paceline.models.lora.names import adapted_modules, peft_key
from paceline.models.role_module import RoleModule
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output
from tests.unit.models.merged import merge, round_trip

pytest.importorskip("peft")
NLL = frozenset({Output.NLL})
SPEC = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",))


def build(
    family: str = "llama", options: BuildOptions | None = None, source: Source | None = None, **changes: Any
) -> RoleModule:
    more = {
        key: changes.pop(key)
        for key in ("compute_dtype", "recompute", "seed", "vocab_size")
        if key in changes
    }
    factory = HFModelFactory(
        source or Source(config=FAMILIES[family]), adapter=replace(SPEC, **changes), **more
    )
    return factory(options or BuildOptions()).train()


def learn(module: RoleModule, steps: int = 3, lr: float = 1e-2) -> list[float]:
    """AdamW on one batch; every trained parameter must get a gradient."""
    named = dict(module.plain_named_parameters())
    optimizer = torch.optim.AdamW(named.values(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = module(make_batch(), NLL)["nll"]
        optimizer.zero_grad()
        loss.backward()
        assert [n for n, p in named.items() if p.grad is None] == []
        optimizer.step()
        module.refresh_compute_weights()
        losses.append(loss.item())
    return losses


def logits(hf: Any) -> torch.Tensor:
    with torch.no_grad():
        return hf.eval()(input_ids=make_batch().input_ids[:, :8]).logits


def test_only_adapters_train_and_the_start_is_the_base() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = build()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    two, other = build(), build(seed=1)
    plain = HFModelFactory(Source(config=FAMILIES["llama"]))()
    names = [name for name, _ in one.plain_named_parameters()]
    assert names[:2] == [f"model.layers.0.self_attn.q_proj.lora_{factor}.weight" for factor in "AB"]
    assert len(names) == 2 * 7 * 2 and not any("lm_head" in n or "embed" in n for n in names)
    trained = {n for n, p in one.hf.named_parameters() if p.requires_grad}
    assert len(trained) == len(names) and all(".lora_" in n for n in trained)
    for (name, a), (_, b), (_, c) in zip(
        *(m.plain_named_parameters() for m in (one, two, other)), strict=True
    ):
        assert torch.equal(a, b), name
        assert torch.equal(a, c) == ("lora_B" in name), name
    batch = make_batch()
    first = one(batch, NLL)["nll"]
    assert first.item() == pytest.approx(plain.train()(batch, NLL)["nll"].item(), abs=1e-4)
    frozen = {n: p.clone() for n, p in one.hf.named_parameters() if not p.requires_grad}
    losses = learn(one, 6)
    assert losses[-1] < losses[0] - 1.0
    assert all(torch.equal(p, frozen[n]) for n, p in one.hf.named_parameters() if n in frozen)
    assert one.adapter is not None and one.adapter.base["fingerprint"] == two.adapter.base["fingerprint"]  # type: ignore[union-attr]
    assert one.adapter.base["fingerprint"] != other.adapter.base["fingerprint"]  # type: ignore[union-attr]


def test_kernels_leave_alone_what_an_adapter_wraps_and_keep_the_rest() -> None:
    def kinds(module: RoleModule) -> tuple[int, int, int]:
        of = [FusedAttention, FusedSwiGLU, FusedRMSNorm]
        return tuple(sum(isinstance(m, k) for m in module.hf.modules()) for k in of)  # type: ignore[return-value]

    assert kinds(build()) == (0, 0, 5)
    attention, mlp = (
        build(target_modules=["q_proj", "v_proj"]),
        build(target_modules=[".*mlp\\.(up|down)_proj"]),
    )
    assert kinds(attention) == (0, 2, 5) and kinds(mlp) == (2, 0, 5)
    for module, adapted in ((attention, 4), (mlp, 4)):
        assert module.adapter is not None
        plain = build(options=BuildOptions(fused=False), target_modules=module.adapter.spec.target_modules)
        assert len(adapted_modules(n for n, _ in module.plain_named_parameters())) == adapted
        assert learn(module) == pytest.approx(learn(plain), abs=1e-3)


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_recomputation_changes_nothing_under_frozen_embeddings_and_dropout(compute: torch.dtype) -> None:
    losses = []
    for recompute in (False, True):
        torch.manual_seed(5)
        losses.append(learn(build(compute_dtype=compute, recompute=recompute, dropout=0.2)))
    torch.manual_seed(6)
    assert losses[0] == losses[1] != learn(build(compute_dtype=compute, dropout=0.2))


@pytest.mark.parametrize("family", ["llama_tied", "gpt2"])
def test_frozen_weights_need_no_masters(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor multiplies bf16, the base is kept in bf16 alone: the same losses as with copies
    of fp32 masters.
    """
    import paceline.models.compute_dtype as precision

    bf16: Any = {"compute_dtype": torch.bfloat16}
    expected = learn(build(family, **bf16))
    monkeypatch.setattr(precision, "product_dtype", lambda dtype, device: dtype)
    module = build(family, **bf16)
    kept = {
        p.dtype
        for m in module.hf.modules()
        for p in m.parameters(recurse=False)
        if p.ndim == 2 and not p.requires_grad
    }
    assert kept == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for _, p in module.plain_named_parameters())
    assert learn(module) == pytest.approx(expected, abs=0.15)
    assert torch.isfinite(logits(module.hf)).all()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"use_rslora": True}),
        ("llama_tied", {"modules_to_save": ["embed_tokens"]}),
        ("llama", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}),
        ("qwen2", {"bias": "all"}),
        ("gpt2", {"bias": "lora_only"}),
    ],
)
def test_peft_loads_what_is_saved_and_merges_to_the_same(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The folder as an export writes it: logits equal the trained model's, peft's own merge equals ours,
    and a run can start from it.
    """
    from peft import PeftModel

    base = HFModelFactory(Source(config=FAMILIES[family]))(BuildOptions(fused=False)).hf.eval()
    base.save_pretrained(tmp_path / "base")
    source = Source(name_or_path=str(tmp_path / "base"))
    module = build(source=source, **changes)
    losses = learn(module, 4)
    trained = {n: p.detach().clone() for n, p in module.plain_named_parameters()}
    assert module.adapter is not None
    ties = module.adapter.base["ties"]
    stored = {**trained, **{other: trained[own] for other, own in ties.items()}}
    adapted = adapted_modules(iter(trained))
    (tmp_path / "adapter").mkdir()
    save_file(
        {peft_key(n, adapted): p.clone() for n, p in stored.items()},
        tmp_path / "adapter/adapter_model.safetensors",
    )
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(dict(module.adapter.peft)))
    expected = logits(module.hf)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(loaded), expected, rtol=0, atol=2e-5)
    theirs = loaded.merge_and_unload().state_dict()
    ours = HFModelFactory(source)(BuildOptions(fused=False)).hf
    merge(ours, module.adapter.spec, trained)
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-6)
    torch.testing.assert_close(logits(ours), expected, rtol=0, atol=2e-5)
    again = build(source=source, **changes, start=str(tmp_path / "adapter"))
    assert learn(again, 1)[0] < losses[0] - 0.1
    assert all(
        torch.equal(p, trained[n])
        for n, p in build(source=source, **changes, start=str(tmp_path / "adapter")).plain_named_parameters()
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_modules": ["no_such"]}, "models.adapter_targets"),
        ({"target_modules": ["q_proj", "no_such"]}, "models.adapter_targets"),
        ({"target_modules": ["q_proj", "proj"]}, "models.adapter_targets"),
        ({"target_modules": ["embed_tokens"]}, "models.adapter_target"),
        ({"target_modules": ["lm_head"]}, "models.adapter_target"),
        ({"modules_to_save": ["no_such"]}, "models.adapter_modules_to_save"),
        ({"start": "/nowhere"}, "models.adapter_weights"),
        ({"vocab_size": 120}, "models.adapter_new_rows"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    HFModelFactory(Source(config=FAMILIES["llama"]))(BuildOptions(fused=False)).hf.save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        build(source=Source(name_or_path=str(tmp_path)), **changes)
    assert [d.code for d in caught.value.diagnostics] == [code]


@pytest.mark.parametrize(("kind", "compute"), [("nf4", torch.float32), ("fp4", torch.bfloat16)])
def test_four_bits_go_on_learning_after_an_evaluation(
    kind: str, compute: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On processors with avx512bf16 an evaluation re-packs bitsandbytes' weights for a kernel without a
    backward.
    """
    modules = pytest.importorskip("bitsandbytes.nn.modules")

    def repack(*_: Any) -> None:
        raise AssertionError("re-packed for a kernel without a backward")

    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
    monkeypatch.setattr(modules, "_convert_weight_packed_for_cpu", repack)
    quantization = Quantization(4, kind)
    module = build(quantization=quantization, compute_dtype=compute)
    packed = [m for m in module.hf.modules() if isinstance(m, modules.Linear4bit)]
    assert len(packed) == 14 and all(
        m.weight.dtype == torch.uint8 and not m.weight.requires_grad for m in packed
    )
    assert type(module.hf.lm_head) is not modules.Linear4bit
    losses = []
    for _ in range(3):
        losses += learn(module, 2, lr=3e-3)
        module.eval()
        with torch.no_grad():
            module(make_batch(), NLL)
        module.train()
    assert all(later < earlier for earlier, later in zip(losses, losses[1:], strict=False))
    if compute == torch.float32:  # merged on the unpacked weights: what was trained
        merged = HFModelFactory(Source(config=FAMILIES["llama"]))(BuildOptions(fused=False)).hf
        round_trip(merged, quantization)
        merge(merged, module.adapter.spec, dict(module.plain_named_parameters()))  # type: ignore[union-attr]
        torch.testing.assert_close(logits(merged), logits(module.hf), rtol=0, atol=2e-5)


def test_a_layer_that_its_parent_reads_itself_gets_no_adapter_and_is_refused_by_name() -> None:
    source = Source(config=tiny_config("gemma3n_text"))
    every = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",))
    module = HFModelFactory(source, adapter=every)()
    assert not [n for n, _ in module.plain_named_parameters() if "correction_coefs" in n]
    assert "none on altup.correction_coefs: no adapter would train" in module.notes()["adapter"]
    module(make_batch((5, 9)), frozenset({Output.NLL}))["nll"].backward()
    assert all(p.grad is not None for _, p in module.plain_named_parameters() if p.requires_grad)
    named = AdapterSpec(r=4, alpha=8, target_modules=("correction_coefs",))
    with pytest.raises(ConfigError, match=r"models.adapter_targets[\s\S]*altup.correction_coefs"):
        HFModelFactory(source, adapter=named)()
