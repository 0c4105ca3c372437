"""LoRA on fused experts: peft's numbers on the routed tokens, peft's files, and merged weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from machines import A100
from model_families import Source, make_batch
from safetensors.torch import save_file
from tiny_families import tiny_config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.lora.names import adapted_modules, peft_key
from paceline.models.role_module import RoleModule
from paceline.plan.features.lora import adapter_parameters
from paceline.plan.features.peft_settings import OF_EXPERTS
from paceline.plan.model.family import families, family_of
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import AdapterSpec
from paceline.plan.strategies.spec import Job
from paceline.protocols.roles import Output
from paceline.rules.planning import make_plan
from paceline.training.rollout.weight_entries import model_entries
from tests.unit.models.merged import merge

pytest.importorskip("peft")
from peft import LoraConfig, inject_adapter_in_model
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

NLL = frozenset({Output.NLL})
TARGETS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
SPEC = AdapterSpec(r=3, alpha=6, target_modules=("q_proj",), target_parameters=TARGETS)


def built(kind: str, spec: AdapterSpec | None = SPEC, dtype: torch.dtype = torch.float32) -> RoleModule:
    """The model with adapters that change something (B is not zero)."""
    module = HFModelFactory(Source(config=tiny_config(kind)), adapter=spec, master_dtype=dtype)().train()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in module.plain_named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return module


def as_peft_computes(module: RoleModule) -> RoleModule:
    """The same with peft's own forward: every expert's product is added to its weight."""
    other = copy.deepcopy(module)
    for part in other.hf.modules():
        if hasattr(part, "get_param"):
            vars(part).pop("forward", None)
        if hasattr(part, "_apply_gate"):
            vars(part).pop("_paceline_adapters", None)
            part.config._experts_implementation = "eager"
    return other


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_losses_and_gradients_are_those_of_the_fused_product(kind: str) -> None:
    module = built(kind, dtype=torch.float64)
    other = as_peft_computes(module)
    found, expected = (one(make_batch(), NLL)["nll"] for one in (module, other))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    found.backward()
    expected.backward()
    theirs = dict(other.plain_named_parameters())
    assert sum(".experts." in name for name in theirs) == 8
    for name, parameter in module.plain_named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
        assert torch.allclose(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12), name
    with module.without_adapter(), torch.no_grad():
        off = module(make_batch(), NLL)["nll"]
    plain = HFModelFactory(Source(config=tiny_config(kind)), master_dtype=torch.float64)().train()
    if kind == "gpt_oss":  # the plain one's own product is in float32 only
        assert float(off) != float(found.detach())
    else:
        plain.hf.config._experts_implementation = "eager"
        assert float(off) == pytest.approx(float(plain(make_batch(), NLL)["nll"].detach()), rel=1e-12)


class Made(TorchDispatchMode):
    """Which operators return a tensor of this size that is no view."""

    def __init__(self, sizes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.sizes, self.found = sizes, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and tuple(out.shape) in self.sizes and not func.is_view:
            self.found.append(str(func))
        return out


def test_no_product_of_a_whole_expert_is_formed() -> None:
    module = built("qwen3_moe")
    shapes = {tuple(p.shape) for p in module.hf.parameters() if p.dim() == 3}
    shapes |= {(e, b, a) for e, a, b in shapes}
    for one, formed in ((module, False), (as_peft_computes(module), True)):
        with Made(shapes) as made:
            one(make_batch(), NLL)["nll"].backward()
        assert bool([name for name in made.found if "detach" not in name]) == formed, made.found


def stored(module: RoleModule, folder: Path) -> None:
    assert module.adapter is not None
    named = {name: p.detach().contiguous() for name, p in module.plain_named_parameters()}
    adapted = adapted_modules(iter(named))
    save_file({peft_key(name, adapted): p for name, p in named.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(module.adapter.peft))


def logits(hf: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = hf.eval()(input_ids=make_batch().input_ids[:, :8]).logits
    return found


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_peft_opens_the_files_and_merging_gives_the_same_model(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel

    module = built(kind)
    expected = logits(module.hf)
    stored(module, tmp_path)
    base = HFModelFactory(Source(config=tiny_config(kind)))().hf
    opened = PeftModel.from_pretrained(base, str(tmp_path))
    assert torch.allclose(logits(opened), expected, atol=1e-5)
    merged = HFModelFactory(Source(config=tiny_config(kind)))().hf
    before = logits(merged)
    merge(merged, SPEC, dict(module.plain_named_parameters()))
    assert torch.allclose(logits(merged), expected, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-3)
    sent = {entry.name: entry.load() for entry in model_entries(module.hf, torch.float32)}
    for name, parameter in merged.named_parameters():
        assert torch.allclose(sent[name], parameter, atol=1e-6), name


def test_the_plan_counts_what_is_trained() -> None:
    module = built("qwen3_moe")
    count = sum(p.numel() for _, p in module.plain_named_parameters())
    assert adapter_parameters(shape_from_config(tiny_config("qwen3_moe")), SPEC) == count


def test_a_tensor_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="mlp.experts.gate_up_proj") as caught:
        built("mixtral", AdapterSpec(r=2, alpha=4, target_parameters=("mlp.experts.up_proj",)))
    assert caught.value.diagnostics[0].code == "models.adapter_targets"


@pytest.mark.parametrize(
    "changes", [{"lora": {"dropout": 0.1}}, {"training": {"torch_compile": True}}, {"model": "llama"}]
)
def test_the_plan_refuses_what_peft_cannot_and_names_what_it_does(changes: dict[str, Any]) -> None:
    def planned(extra: dict[str, Any]) -> Any:
        tree = {
            "model": {"config": tiny_config(extra.get("model", "mixtral")), "tokenizer": "t"},
            "data": {"train": [{"path": "rows.jsonl"}], "max_length": 64},
            "training": {"max_steps": 2, **extra.get("training", {})},
            "lora": {"r": 3, "target_parameters": list(TARGETS), **extra.get("lora", {})},
        }
        job = Job(Config.from_json(tree), A100, launcher="spawn", run_dir="/nowhere/run")
        return make_plan(job)

    said = {d.subject: d.reason for d in planned({}).decisions}
    assert "computed on the routed tokens" in said["lora.target_parameters"]
    with pytest.raises(ConfigError) as caught:
        planned(changes)
    assert "plan.adapter_experts" in {d.code for d in caught.value.diagnostics}


@pytest.mark.parametrize("kind", sorted(k for k, f in families().items() if f.trained))
def test_names_that_peft_takes_for_experts_are_those_of_the_record(kind: str) -> None:
    config = LoraConfig(target_modules=[*OF_EXPERTS, "w1", "w2", "w3"])
    model: Any = SimpleNamespace(config=SimpleNamespace(model_type=kind))
    convert_peft_config_for_transformers(config, model, None)
    assert bool(config.target_parameters) is family_of(kind).renames_experts


@pytest.mark.parametrize("kind", ["glm4_moe", "deepseek_v3", "qwen3_next"])
def test_all_linear_is_what_peft_reads_in_the_file_beside_experts(kind: str) -> None:
    spec = AdapterSpec(r=2, alpha=4, target_modules=("all-linear",))
    source = Source(config=tiny_config(kind))
    module = HFModelFactory(source, adapter=spec, compute_dtype=torch.bfloat16)().train()
    module(make_batch(), NLL)["nll"].backward()  # type: ignore[no-untyped-call]
    names = {name for name, p in module.plain_named_parameters() if p.grad is not None}
    assert names and not any("mlp" in n and "shared_expert_gate" not in n for n in names)
    assert module.adapter is not None and "none on down_proj, gate_proj, up_proj" in module.adapter.note
    base = HFModelFactory(source)().hf
    settings = {**module.adapter.peft, "target_modules": set(module.adapter.peft["target_modules"])}
    settings.pop("peft_type")
    theirs = inject_adapter_in_model(LoraConfig(**settings), base)
    found = {n.replace(".default", "") for n, _ in theirs.named_parameters() if ".lora_" in n}
    assert found == names


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("glm4_moe", ("q_proj", "gate_proj", "up_proj")),
        ("glm4_moe", ("shared_experts.down_proj",)),
        ("glm4_moe", ("gate_proj",)),
        ("qwen3_moe", (r".*layers\.0\..*q_proj",)),
        ("qwen3_moe", (r".*(q|gate|up|down)_proj",)),
    ],
)
def test_what_peft_would_read_otherwise_is_refused(kind: str, targets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        built(kind, AdapterSpec(r=2, alpha=4, target_modules=targets))
    assert [d.code for d in raised.value.diagnostics] == ["models.adapter_targets"]
