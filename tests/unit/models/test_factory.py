"""Building: from a config, from a folder; embedding rows, positions, and every refusal by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_families import FAMILIES, VOCAB, Source, build_family, make_batch
from safetensors.torch import load_file, save_file

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.fused_layers.qkv_rotary import FusedAttention
from paceline.models.fused_layers.rms_norm import FusedRMSNorm
from paceline.models.fused_layers.swiglu import FusedSwiGLU, fuse_mlps
from paceline.plan.plan import AdapterSpec
from paceline.protocols.roles import Output

NLL = frozenset({Output.NLL})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved tiny Llama."""
    build_family("llama").hf.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_initial_weights_depend_on_the_seed_alone() -> None:
    source = Source(config=FAMILIES["llama"])
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = HFModelFactory(source, seed=1)()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    two, other = HFModelFactory(source, seed=1)(), HFModelFactory(source, seed=2)()
    for (name, a), (_, b) in zip(one.plain_named_parameters(), two.plain_named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert not torch.equal(one.hf.lm_head.weight, other.hf.lm_head.weight)


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_off_where_it_is_disabled(dropout: bool) -> None:
    """The model's own layers and those of adapters, as TRL's ``disable_dropout_in_model``."""
    adapter = AdapterSpec(2, 4.0, dropout=0.5, target_modules=("c_attn",))
    source = Source(config={**FAMILIES["gpt2"], "resid_pdrop": 0.4})
    model = HFModelFactory(source, adapter=adapter, dropout=dropout)()
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == ({0.0} if not dropout else rates) and ({0.4, 0.5} <= rates) is dropout


def test_a_folder_round_trips_under_its_own_names(folder: Path) -> None:
    original = build_family("llama")
    loaded = HFModelFactory(Source(name_or_path=str(folder)))().train()
    for (name, a), (same, b) in zip(
        original.plain_named_parameters(), loaded.plain_named_parameters(), strict=True
    ):
        assert name == same
        assert torch.equal(a, b), name
    assert set(load_file(folder / "model.safetensors")) == {
        name for name, _ in original.plain_named_parameters()
    }
    batch = make_batch()
    assert torch.equal(original(batch, NLL)["nll"], loaded(batch, NLL)["nll"])


def test_tied_weights_are_named_once() -> None:
    names = [name for name, _ in build_family("llama_tied").plain_named_parameters()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_llama_is_built_of_fused_parts() -> None:
    kinds = [type(m) for m in build_family("llama").hf.modules()]
    assert sum(issubclass(k, FusedRMSNorm) for k in kinds) == 5
    assert sum(issubclass(k, FusedSwiGLU) for k in kinds) == 2


def test_tanh_gelu_between_the_projections_is_seen_and_stays_the_models_own_on_a_cpu() -> None:
    mlps = [m for m in build_family("gemma").hf.modules() if isinstance(m, FusedSwiGLU)]
    assert len(mlps) == 2 and all(m.paceline_tanh for m in mlps)
    x, own = torch.randn(2, mlps[0].gate_proj.in_features), type(mlps[0]).__mro__[2]
    assert torch.equal(mlps[0](x), own.forward(mlps[0], x))
    assert not any(m.paceline_tanh for m in build_family("llama").hf.modules() if isinstance(m, FusedSwiGLU))


def test_a_variant_that_only_looks_like_swiglu_is_left_alone() -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    mlp = LlamaMLP(build_family("llama").hf.config.__class__(**{**FAMILIES["llama"], "hidden_act": "relu"}))
    assert fuse_mlps(mlp) == 0


@pytest.mark.parametrize("family", ["llama", "llama_tied", "phi"])
def test_new_rows_start_near_the_mean(tmp_path: Path, family: str) -> None:
    old = build_family(family)
    old.hf.save_pretrained(tmp_path / "model")
    source = Source(name_or_path=str(tmp_path / "model"), embedding_multiple=8)
    new, again = (HFModelFactory(source, vocab_size=VOCAB + 2, seed=3)() for _ in range(2))
    assert new.hf.config.vocab_size == 104
    assert HFModelFactory(source, vocab_size=VOCAB + 2).hf_config["vocab_size"] == 104
    for name, weight in new.plain_named_parameters():
        before = dict(old.plain_named_parameters())[name]
        if weight.shape == before.shape:
            assert torch.equal(weight, before), name
            continue
        assert weight.shape[0] == 104
        assert torch.equal(weight[:VOCAB], before)
        torch.testing.assert_close(weight[VOCAB:].mean(0), before.mean(0), rtol=0, atol=2e-3)
        assert torch.equal(weight, dict(again.plain_named_parameters())[name])
    new(make_batch(), NLL)["nll"].backward()


def test_fewer_tokens_than_rows_change_nothing() -> None:
    module = HFModelFactory(Source(config=FAMILIES["llama"]), vocab_size=50)()
    assert module.hf.lm_head.weight.shape[0] == VOCAB


def _refused(code: str, **kwargs: object) -> str:
    vocab_size = kwargs.pop("vocab_size", None)
    with pytest.raises(ConfigError) as caught:
        HFModelFactory(Source(**kwargs), vocab_size=vocab_size)()  # type: ignore[arg-type]
    assert caught.value.diagnostics[0].code == code
    return str(caught.value)


def test_refusals_have_names(folder: Path, tmp_path: Path) -> None:
    assert "99 tokens" in _refused(
        "models.vocab_too_large", config=FAMILIES["llama"], vocab_size=99, resize_embeddings="never"
    )
    assert "no_such_type" in _refused("models.bad_config", config={"model_type": "no_such_type"})
    _refused("models.bad_config", config={"hidden_size": 8})
    _refused("models.bad_config", config={**FAMILIES["llama"], "num_attention_heads": 5})
    _refused("models.no_model")
    _refused("models.cannot_load", name_or_path=str(tmp_path / "missing"))
    _refused("models.not_causal", config={"model_type": "vit"})


def test_pickled_weights_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "safetensors" in _refused("models.cannot_load", name_or_path=str(folder))


def test_missing_weights_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "up_proj" in _refused("models.missing_weights", name_or_path=str(folder))


def test_code_named_by_a_config_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoModelForCausalLM": "evil.Evil"},
        "_attn_implementation_internal": "someone/kernel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    module = HFModelFactory(Source(name_or_path=str(folder)))()
    assert type(module.hf).__name__ == "LlamaForCausalLM"
    assert module.hf.config._attn_implementation == "paceline"


@pytest.mark.parametrize(
    ("family", "fused"),
    [
        ("llama", 2),
        ("qwen2", 2),
        ("qwen2_window", 2),
        ("mistral", 2),
        ("gemma", 2),
        ("qwen3", 0),
        ("gemma2", 2),
        ("phi", 0),
    ],
)
def test_attention_is_fused_where_it_is_plain(family: str, fused: int) -> None:
    attentions = [m for m in build_family(family).hf.modules() if isinstance(m, FusedAttention)]
    assert len(attentions) == fused
    windows = [m.paceline_passes.get("sliding_window") for m in attentions]
    assert windows == {"mistral": [4, 4], "qwen2_window": [None, 4], "gemma2": [4, None]}.get(
        family, [None] * fused
    )
