"""Adapters as peft 0.21 reads and writes them: peft itself is the judge, in float64.

Every setting of its LoraConfig × load, train a step, export, merge: the logits of ``PeftModel``, which also
loads the export; what cannot be followed is refused by name before the start.
"""

from __future__ import annotations

import dataclasses
import json
import random
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import OneRank, whole
from support import swept

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.convert.convert import spec_of
from paceline.checkpoint.export.hf_export import export_hf
from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.plan.features.lora import adapter_of, adapter_parameters
from paceline.plan.features.peft_settings import (
    CARRIED,
    NO_MATTER,
    OFT_CARRIED,
    OFT_FIXED,
    OFT_NO_MATTER,
    REFUSED,
)
from paceline.plan.model.files.safetensors_headers import adapter_sizes
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan_json import to_json
from paceline.protocols.model import BuildOptions
from tests.unit.models.model_families import FAMILIES, Source
from tests.unit.models.tiny_families import tiny_config

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")  # peft's own, of settings that it ignores
CASE = Path(__file__).resolve().parents[4] / "shared" / "cases" / "turn3" / "adapters" / "make.py"
IDS = torch.tensor([[5, 17, 40, 3, 61, 22, 9, 80]])
CONFIGS = {**FAMILIES, **{kind: tiny_config(kind) for kind in ("mixtral", "qwen2_moe")}}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
PATTERNS: dict[str, Any] = {
    "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 6},
    "alpha_pattern": {"v_proj": 3, "^model.layers.0.mlp.*": 5},
}
FOLLOWED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"init_lora_weights": False, "lora_alpha": 3}),
    ("llama", {"init_lora_weights": "gaussian", "r": 3, "use_rslora": True}),
    ("llama", {"init_lora_weights": "orthogonal", "exclude_modules": ["q_proj", "layers.1.mlp.up_proj"]}),
    ("llama", {"init_lora_weights": "pissa", "use_rslora": True, **PATTERNS}),
    ("llama", {"init_lora_weights": "OLoRA", "lora_alpha": 3, "bias": "all", "modules_to_save": ["norm"]}),
    ("gpt2", {"init_lora_weights": "pissa", "target_modules": ["c_attn", "c_proj"]}),
    ("llama", {"exclude_modules": r".*layers\.0.*", "modules_to_save": ["norm"]}),
    ("llama", {"modules_to_save": ["q_proj"], **PATTERNS, "use_rslora": True}),
    ("llama", {"modules_to_save": ["mlp", "lm_head"], "bias": "all", "fan_in_fan_out": True}),
    ("llama", {"modules_to_save": ["layers.1"], "target_modules": r".*\.(q|down)_proj"}),
    ("llama", {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]}),
    ("llama", {"target_modules": ["v_proj"], "layers_to_transform": 0, "layers_pattern": "layers"}),
    ("llama", {"target_modules": ["layers.0.self_attn.q_proj"], "modules_to_save": ["embed_tokens"]}),
    ("llama_tied", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    ("qwen2", {"bias": "lora_only"}),
    ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "rank_pattern": {"c_attn": 2}}),
    ("llama", {"use_dora": True, "rank_pattern": {"q_proj": 2}}),
    ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True}),
    ("llama", {"oft_block_size": 8}),
    ("qwen2", {"oft_block_size": 24, "modules_to_save": ["norm"], "exclude_modules": ["k_proj"]}),
    ("llama", {"oft_block_size": 4, "target_modules": ["o_proj", "up_proj"], "layers_to_transform": [1]}),
    ("mixtral", {"target_modules": ["q_proj"], "modules_to_save": ["gate"], "target_parameters": EXPERTS}),
    ("qwen2_moe", {"target_modules": ["q_proj"], "modules_to_save": ["gate"]}),
]
ALORA = {"alora_invocation_tokens": [3]}
TURNED_DOWN: list[tuple[str, dict[str, Any]]] = [
    *[("init_lora_weights", {"init_lora_weights": init}) for init in ("pissa_niter_4", "mica")],
    ("lora_bias", {"lora_bias": True}),
    ("trainable_token_indices", {"trainable_token_indices": [1, 2]}),
    ("alora_invocation_tokens", ALORA),
    ("layer_replication", {"layer_replication": [[0, 2], [1, 2]]}),
    (
        "use_bdlora",
        {"use_bdlora": peft.tuners.lora.BdLoraConfig(target_modules_bd_a=["q_proj"], match_strict=False)},
    ),
    ("velora_config", {"velora_config": peft.tuners.lora.config.VeloraConfig(num_groups=4)}),
    *[
        (named, {"oft_block_size": 8, named: value})
        for named, value in {
            "bias": "all",
            "block_share": True,
            "coft": True,
            "module_dropout": 0.5,
            "num_cayley_neumann_terms": 3,
            "use_cayley_neumann": False,
        }.items()
    ],
    ("kasa_config", {"kasa_config": peft.tuners.lora.config.KasaConfig()}),
    ("monteclora_config", {"monteclora_config": peft.tuners.lora.config.MontecloraConfig()}),
]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


def close(one: torch.Tensor, other: torch.Tensor, what: str, bound: float = 2e-6) -> None:
    assert (one - other).abs().max().item() < bound * max(1.0, other.abs().max().item()), what


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Bases with weights spread out, one of each family, made when asked for."""

    class Made(dict[str, Path]):
        def __missing__(self, family: str) -> Path:
            folder = tmp_path_factory.mktemp("bases") / family
            hf: Any = HFModelFactory(Source(config=CONFIGS[family]))(BuildOptions(fused=False)).hf
            generator = torch.Generator().manual_seed(3)
            with torch.no_grad():
                for parameter in hf.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            hf.save_pretrained(folder)
            self[family] = folder
            return folder

    yield Made()


def base_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    experts: dict[str, Any] = {}
    if "num_experts_per_tok" in (folder / "config.json").read_text():
        experts = {"experts_implementation": "eager"}  # torch's grouped product has no float64
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **experts)


def made_by_peft(base: Path, to: Path, settings: dict[str, Any]) -> None:
    """Save peft's adapter with values that differ from the first ones."""
    torch.manual_seed(5)
    given = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}
    kind = peft.OFTConfig if "oft_block_size" in settings else peft.LoraConfig
    model = peft.get_peft_model(
        base_model(base), kind(**given if kind is peft.OFTConfig else {"r": 4} | given)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape), alpha=0.05)
    model.save_pretrained(to)


def learn(model: Any) -> None:
    """One plain step in what the model trains."""
    trained = [p for p in model.parameters() if p.requires_grad]
    loss = torch.nn.functional.cross_entropy(model(input_ids=IDS).logits[0, :-1], IDS[0, 1:])
    for parameter, grad in zip(trained, torch.autograd.grad(loss, trained), strict=True):
        parameter.data.sub_(grad, alpha=0.02)
        parameter.data = parameter.data.float().double()  # as exports hold it


def holds(base: Path, folder: Path, to: Path, bound: float = 2e-6) -> torch.Tensor:
    """Load peft's ``folder``, train a step, export, merge, load again: each time the logits of ``PeftModel``.
    Return those of the folder as it is. ``bound``: after the step, whose weights are rounded.
    """
    theirs = peft.PeftModel.from_pretrained(base_model(base), folder, is_trainable=True).double()
    spec = adapter_of(LoraSection(adapter_name_or_path=str(folder)))
    assert spec is not None
    shape = shape_from_config(json.loads((base / "config.json").read_text()))
    if found := adapter_sizes(folder, spec, shape):
        raise ConfigError(*found)
    build = HFModelFactory(
        Source(name_or_path=str(base)), adapter=spec, master_dtype=torch.float64, compute_dtype=torch.float64
    )
    module = build(BuildOptions(fused=False))
    loaded = logits(module.hf)
    close(loaded, logits(theirs), "loaded")
    learn(theirs.train())
    learn(module.hf.train())
    want = logits(theirs)
    close(logits(module.hf), want, "trained", bound)
    trained = dict(module.plain_named_parameters())
    counted = adapter_parameters(shape, spec)
    assert counted is None or counted == sum(p.numel() for p in trained.values())
    # A checkpoint of it, exported and merged; a run can start from the export
    assert module.adapter is not None
    state = {
        "adapter": to_json(spec),
        "base_model": dict(module.adapter.base),
        "config": Config.from_json({"model": {"name_or_path": str(base)}}).to_json(),
    }
    files = {"config.json": build.saved_config, "adapter_config.json": dict(module.adapter.peft)}
    sides = {name: json.dumps(value).encode() for name, value in files.items()}
    shards = [whole(name, p.detach()) for name, p in trained.items()]
    checkpoint = Checkpointer(RunDir.at(to / "run"), OneRank()).save(1, shards, state, sides)
    assert export_hf(checkpoint, to / "adapter").load_checked
    back = peft.PeftModel.from_pretrained(base_model(base), to / "adapter").double()
    close(logits(back), want, "exported", bound)
    export_hf(checkpoint, to / "merged", merge=True)
    close(
        logits(base_model(to / "merged", torch.float64)), want, "merged", max(2e-5, bound)
    )  # sums in float32
    again = adapter_of(LoraSection(adapter_name_or_path=str(to / "adapter")))
    assert again is not None
    onward = HFModelFactory(Source(name_or_path=str(base)), adapter=again, master_dtype=torch.float64)
    assert all(
        torch.equal(p, trained[n]) for n, p in onward(BuildOptions(fused=False)).plain_named_parameters()
    )
    return loaded


@pytest.mark.parametrize(("family", "settings"), swept(FOLLOWED, 3, 1), ids=lambda value: str(value)[:60])
def test_what_is_followed_is_peft_s_model(
    family: str, settings: dict[str, Any], bases: dict[str, Path], tmp_path: Path
) -> None:
    made_by_peft(bases[family], tmp_path / "peft", settings)
    holds(bases[family], tmp_path / "peft", tmp_path)


@pytest.mark.skipif(not CASE.is_file(), reason="../shared is not here")
@pytest.mark.parametrize("kind", ["lora", "pissa", pytest.param("olora", marks=pytest.mark.full)])
def test_an_adapter_that_is_new_computes_what_its_base_computes(
    kind: str, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [str(CASE), str(tmp_path), kind, str(tokenizer_dir)])
    runpy.run_path(str(CASE))
    loaded = holds(tmp_path / "base", tmp_path / kind, tmp_path / "ours")
    close(loaded, logits(base_model(tmp_path / "base", torch.float64)), "new", 2e-5)  # first made in float32


def drawn(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A family and settings of ``LoraConfig``, any of which may be one that is refused."""
    family = draw.choice(["llama", "llama", "llama_tied", "qwen2", "qwen2_moe", "mixtral"])
    one: Any = draw.choice

    def some(of: list[str], most: int = 3) -> list[str]:
        return draw.sample(of, draw.randint(1, most))

    linear = ["q_proj", "k_proj", "v_proj", "o_proj"]
    linear += [] if family in ("qwen2_moe", "mixtral") else ["gate_proj", "up_proj", "down_proj"]
    layers = [f"layers.{one([0, 1])}.self_attn.{name}" for name in some(linear[:4])]
    made: dict[str, Any] = {
        "r": one([1, 2, 4, 6]),
        "lora_alpha": draw.randint(1, 9),
        "use_rslora": one([True, False]),
        "bias": one(["none", "none", "all", "lora_only"]),
        "init_lora_weights": one(
            [True, False, "gaussian", "orthogonal", "pissa", "olora", "pissa_niter_2", "mica"]
        ),
        "target_modules": one(
            [some(linear), layers, r".*\.(q|v|o)_proj", r".*layers\.1\..*_proj", "all-linear"]
        ),
    }
    further: dict[str, Any] = {
        "rank_pattern": {key: one([1, 2, 3, 5]) for key in some([*linear, *layers, r"layers\.0.*"])},
        "alpha_pattern": {key: one([1, 2.5, 7]) for key in some([*linear, *layers, "^model.layers.1.*"])},
        "exclude_modules": one([some(linear[1:], 2), layers[:1], r".*layers\.0.*k_proj"]),
        "modules_to_save": some(
            ["norm", "lm_head", "embed_tokens", "q_proj", "self_attn", "layers.1", "input_layernorm", "gate"],
            2,
        ),
        "layers_to_transform": one([0, [1], [0, 1]]),
        "ensure_weight_tying": True,
    }
    refused = {"lora_bias": True, "trainable_token_indices": [1, 2]}
    made |= {key: value for key, value in further.items() if draw.random() < 0.35}
    made |= {key: value for key, value in refused.items() if draw.random() < 0.05}
    if family == "mixtral":  # whose further layers are experts, which peft takes by target_parameters
        made |= {"target_modules": some(linear)} | (
            {"target_parameters": EXPERTS} if one([True, False]) else {}
        )
    if "layers_to_transform" in made and one([True, False]):
        made["layers_pattern"] = "layers"
    return family, made


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed < 3 else pytest.mark.full if seed < 12 else pytest.mark.slow)
        for seed in range(240)
    ],
)
def test_any_combination_is_peft_s_model_or_refused_by_name(
    seed: int, bases: dict[str, Path], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    while True:  # until peft itself takes what is drawn
        family, settings = drawn(draw)
        try:
            made_by_peft(bases[family], tmp_path / "peft", settings)
            peft.PeftModel.from_pretrained(base_model(bases[family]), tmp_path / "peft")
            break
        except (ValueError, TypeError, RuntimeError, AttributeError, KeyError):
            continue
    never = settings.keys() & REFUSED
    if settings["init_lora_weights"] in ("pissa_niter_2", "mica"):
        never |= {"init_lora_weights"}
    try:
        holds(bases[family], tmp_path / "peft", tmp_path, bound=1e-4)
    except ConfigError as error:
        said = " ".join(f"{found.where} {found.found}" for found in error.diagnostics)
        at_times = {"modules_to_save", "target_parameters", "init_lora_weights"} & settings.keys()
        assert all(key in said for key in never) and (never or any(key in said for key in at_times)), error
    else:
        assert not never


@pytest.mark.parametrize(("named", "settings"), TURNED_DOWN, ids=lambda value: str(value)[:40])
def test_what_is_not_followed_is_refused_by_name(
    named: str, settings: dict[str, Any], bases: dict[str, Path], tmp_path: Path
) -> None:
    """At a start and by ``checkpoints convert``, from the folder that peft has written."""
    made_by_peft(bases["llama"], tmp_path, settings)
    with pytest.raises(ConfigError, match=rf"plan.adapter_kind[\s\S]*{named} is"):
        adapter_of(LoraSection(adapter_name_or_path=str(tmp_path)))
    with pytest.raises(ConfigError, match=rf"plan.adapter_kind[\s\S]*{named} is"):
        spec_of(json.loads((tmp_path / "adapter_config.json").read_text()), "here")


def test_every_setting_is_decided() -> None:
    """A setting of a later peft must be put into one of the three sets; until then it is refused when set."""
    known = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert known - (CARRIED | NO_MATTER | REFUSED) == set()
    of_oft = {field.name for field in dataclasses.fields(peft.OFTConfig)}
    assert of_oft - (OFT_CARRIED | OFT_NO_MATTER | OFT_FIXED.keys()) == set()
    rotation = {"peft_type": "OFT", "oft_block_size": 8, "target_modules": ["q_proj"]}
    for wrong in ({"oft_block_size": 0}, {"r": 4}, {"of_tomorrow": 1}, {"target_modules": None}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            spec_of({**rotation, **wrong}, "here")
    assert not (CARRIED & NO_MATTER or CARRIED & REFUSED or NO_MATTER & REFUSED)
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    for key in (*REFUSED, "of_tomorrow"):
        with pytest.raises(ConfigError, match=f"{key} is set"):
            spec_of({**plain, key: {"a": 1}}, "here")
    for init in ("lora_ga", "corda", "loftq", "PiSSA", "of_tomorrow"):
        with pytest.raises(ConfigError, match="init_lora_weights is"):
            spec_of({**plain, "init_lora_weights": init}, "here")
    assert spec_of({**plain, "init_lora_weights": "eva", "eva_config": {"rho": 2.0}}, "here").r == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = json.loads(
            json.dumps(peft.LoraConfig(target_modules=["q_proj"]).to_dict(), default=sorted)
        )
    assert spec_of(defaults, "here").target_modules == ("q_proj",)


@pytest.mark.parametrize("kind", sorted(set(peft.PeftType) - {peft.PeftType.LORA, peft.PeftType.OFT}))
def test_every_other_method_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"peft_type is {kind}"):
        spec_of({"peft_type": str(kind), "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, "here")


@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_a_weight_that_peft_has_untied_is_refused_before_the_start(
    saved: list[str], bases: dict[str, Path], tmp_path: Path
) -> None:
    made_by_peft(bases["llama_tied"], tmp_path, {"modules_to_save": saved})
    spec = adapter_of(LoraSection(adapter_name_or_path=str(tmp_path)))
    assert spec is not None
    (found,) = adapter_sizes(tmp_path, spec, shape_from_config(CONFIGS["llama_tied"]))
    assert found.code == "plan.adapter_kind" and "ensure_weight_tying" in found.found
    with pytest.raises(ConfigError, match=r"plan.adapter_kind[\s\S]*ensure_weight_tying"):
        HFModelFactory(Source(name_or_path=str(bases["llama_tied"])), adapter=spec)(BuildOptions())


def test_an_export_that_peft_cannot_load_is_removed(bases: dict[str, Path], tmp_path: Path) -> None:
    """As of a run before version 1.16: ``norm`` meant the last norm alone."""
    spec = dataclasses.replace(
        spec_of({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}, "")
    )
    build = HFModelFactory(Source(name_or_path=str(bases["llama"])), adapter=spec)
    module = build(BuildOptions(fused=False))
    assert module.adapter is not None
    files = {
        "config.json": build.saved_config,
        "adapter_config.json": {**module.adapter.peft, "modules_to_save": ["norm"]},
    }
    shards = [whole(n, p.detach()) for n, p in module.plain_named_parameters()]
    shards.append(whole("model.norm.weight", torch.ones(32)))
    sides = {name: json.dumps(value).encode() for name, value in files.items()}
    checkpoint = Checkpointer(RunDir.at(tmp_path / "run"), OneRank()).save(
        1, shards, {"base_model": {}}, sides
    )
    with pytest.raises(CheckpointError, match=r"export.load_check[\s\S]*layernorm"):
        export_hf(checkpoint, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
