"""What a model's class, and the tokenizer beside it, cannot do of what a plan asks: found by ``plan``,
which builds the model without storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fault_jobs import GPT2, LLAMA, Job, tried_here, write_weights

from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.core.security.remote_code import read_code
from paceline.plan.model.family import families, family_of
from paceline.plan.model.files.unusual_config import unusual

Settings = dict[str, Any]
FSDP = {"launch.nproc": 2, "training.distributed_strategy": "fsdp", "training.fsdp": "full_shard"}
TENSOR = {**FSDP, "training.parallelism": {"tp_size": 2}}
SEQUENCE = {**FSDP, "training.parallelism": {"tp_size": 2, "sequence_parallel": True}}


def of_family(job: Job, kind: str, **changed: Any) -> Settings:
    """The model in the job's folder becomes a small one of another family."""
    from transformers import AutoConfig

    from paceline.plan.model.shrink import shrunk

    sizes = shrunk(AutoConfig.for_model(kind).to_dict(), layers=4) | {"vocab_size": 320, "pad_token_id": None}
    (job.model / "config.json").write_text(json.dumps({**sizes, **changed, "transformers_version": None}))
    write_weights(job.model)
    return {}


def asked_rollouts(job: Job) -> Settings:
    rows = job.root / "asked.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n')
    told = {"max_completion_length": 32, "rewards": ["exact_match"]}
    return {"data.train": str(rows), "training.algorithm": "grpo", "training.rollout": told}


def _pairs(job: Job) -> Settings:
    from support import write_pairs

    return {"data.train": str(write_pairs(job.root / "pairs.json", 8)), "training.algorithm": "reward"}


def _gpt2_in_4_bits(job: Job) -> Settings:
    pytest.importorskip("bitsandbytes")
    return {"model.name_or_path": str(job.root / "models" / "gpt2"), "lora.r": 4, "lora.quantization_bit": 4}


def _few_rows(job: Job) -> Settings:
    """Fewer rows in the embedding than the tokenizer has tokens."""
    file = job.model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": 200}))
    write_weights(job.model)
    return {}


def _own_plan(job: Job) -> Settings:
    """A plan in config.json, over that of the class, which matches no layer."""
    file = job.model / "config.json"
    file.write_text(
        json.dumps(
            {**json.loads(file.read_text()), "base_model_tp_plan": {"layers.*.attention.wq": "colwise"}}
        )
    )
    return TENSOR


def own_class(job: Job, name: str, beside: str) -> Settings:
    """A class of one's own, with more in its ``__init__``; ``name``: what it is called, for Transformers
    keeps it by that for the whole process.
    """
    config = json.loads((job.model / "config.json").read_text())
    names = {
        "AutoConfig": f"configuration_{name}.Config",
        "AutoModelForCausalLM": f"modeling_{name}.ForCausalLM",
    }
    (job.model / "config.json").write_text(json.dumps({**config, "auto_map": names}))
    (job.model / f"configuration_{name}.py").write_text(
        "from transformers import LlamaConfig\nclass Config(LlamaConfig):\n    model_type = 'llama'\n"
    )
    (job.model / f"modeling_{name}.py").write_text(
        f"from transformers import LlamaForCausalLM\nfrom .configuration_{name} import Config\n"
        "class ForCausalLM(LlamaForCausalLM):\n    config_class = Config\n"
        f"    def __init__(self, config):\n        super().__init__(config)\n        {beside}\n"
    )
    return {"model.trust_remote_code": True, "model.revision": read_code(job.model).digest}


FAULTS: list[tuple[str, Callable[[Job], Settings]]] = [
    ("models.adapter_target", lambda job: {"lora.target_modules": ["embed_tokens"]}),
    (
        "models.no_recompute",
        lambda job: {**of_family(job, "jetmoe"), "training.gradient_checkpointing": True},
    ),
    ("models.no_scalar_head", lambda job: {**of_family(job, "cohere"), **_pairs(job)}),
    ("models.nothing_to_quantise", _gpt2_in_4_bits),
    (
        "models.attention_not_packable",
        lambda job: {**of_family(job, "gptj"), "model.attn_implementation": "paceline"},
    ),
    (
        "models.attention_not_packable",
        lambda job: {
            **of_family(job, "qwen3", layer_types=["chunked_attention"] * 4),
            "model.attn_implementation": "paceline",
        },
    ),
    (
        "models.cp_padded",
        lambda job: {**own_class(job, "own", "pass"), **FSDP, "training.parallelism": {"cp_size": 2}},
    ),
    ("models.sp_padded", lambda job: {**SEQUENCE, "model.attn_implementation": "sdpa"}),
    ("models.sp_final_norm", lambda job: {**of_family(job, "olmo"), **SEQUENCE}),
    ("models.tp_not_sharded", _own_plan),
    ("models.tp_plan_incomplete", lambda job: {**of_family(job, "apertus"), **TENSOR}),
    ("generation.stateful", lambda job: {**of_family(job, "minimax"), **asked_rollouts(job)}),
    ("generation.stateful", lambda job: {**of_family(job, "xlstm"), **asked_rollouts(job)}),
    ("strategy.nothing_to_train", lambda job: own_class(job, "ice", "self.requires_grad_(False)")),
    ("models.adapter_new_rows", lambda job: {**_few_rows(job), "lora.r": 4}),
    ("models.vocab_too_large", lambda job: {**_few_rows(job), "model.resize_embeddings": "never"}),
]


@pytest.mark.parametrize(("code", "fault"), FAULTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(FAULTS)])
def test_a_fault_is_found_by_plan(
    job: Job, code: str, fault: Callable[[Job], Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_here(monkeypatch)
    found = job.found(fault(job))
    wrong = {c: d.render() for c, d in found.items() if d.severity.value == "error"}
    assert set(wrong) == {code}, wrong
    assert found[code].hint


#: Values of ``model.config`` that Transformers refuses, or of which everything computed is NaN.
VALUES: list[dict[str, Any]] = [
    {"hidden_act": "nope"},
    {"rope_scaling": {"rope_type": "nope", "factor": 2}},
    {"rope_scaling": {"type": "linear"}},
    {"pad_token_id": 100000},
    {"rms_norm_eps": -1},
    {"use_cache": "maybe"},
    {"head_dim": 7},
    {"max_position_embeddings": None},
    {"dtype": "nope"},
    {"initializer_range": -1},
    {"tie_word_embeddings": 7},
    {"layer_types": ["full_attention"]},
    {"rope_theta": 0},
    {"rope_scaling": {"rope_type": "yarn", "factor": 0}},
    {"rms_norm_eps": -1.0},
    {"attention_dropout": 1.5},
]


@pytest.mark.parametrize("inline", [True, False], ids=["model.config", "config.json"])
@pytest.mark.parametrize("value", VALUES, ids=[str(v) for v in VALUES])
def test_a_value_that_no_model_is_built_of_is_found_by_plan(
    job: Job, value: dict[str, Any], inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_here(monkeypatch)
    config = {**LLAMA, **value}
    if not inline:
        (job.model / "config.json").write_text(json.dumps(config))
    given = (
        {"model.name_or_path": None, "model.config": config, "model.tokenizer": str(job.model)}
        if inline
        else {}
    )
    found = {c for c, d in job.found(given).items() if d.severity.value == "error"}
    assert found and not found - {
        "models.bad_config",
        "models.cannot_load",
        "plan.model_heads",
        "plan.model_size",
        "plan.weights_sizes",  # of the sound config
    }, found


def test_ordinary_values_cost_no_try() -> None:
    """What released models of these families say; a try costs seconds of every plan."""
    qwen = {
        "head_dim": 128,
        "max_window_layers": 28,
        "sliding_window": None,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "rope_scaling": None,
    }
    llama = {
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "eos_token_id": [1, 2],
    }
    for config in (
        LLAMA,
        GPT2,
        {**LLAMA, **qwen, "rope_theta": 1000000, "rms_norm_eps": 1e-6},
        {**LLAMA, **llama, "pretraining_tp": 1},
    ):
        assert not unusual(config, written=False)
    assert not unusual(LLAMA, written=True)


@pytest.mark.parametrize("kind", sorted(kind for kind, known in families().items() if not known.needs_trial))
def test_what_the_table_settles_is_so(kind: str) -> None:
    """Of these families the plan builds no model: whatever their classes refuse, the plan refuses by its
    table.
    """
    import torch
    from transformers import AutoConfig

    from paceline.generation.decoding.growing_cache import cache_for
    from paceline.models import quantized_linear
    from paceline.models.activation_checkpointing import enable_recompute
    from paceline.models.factory import HFModelFactory
    from paceline.models.parallel.tensor_parallel_cut import how_cut
    from paceline.plan.model.shrink import shrunk
    from paceline.protocols.model import BuildOptions
    from paceline.protocols.roles import Role

    sizes = shrunk(AutoConfig.for_model(kind).to_dict(), layers=2) | {"vocab_size": 320, "pad_token_id": None}
    model = ModelSection(config=sizes)
    root, _ = (
        HFModelFactory(model, role)(BuildOptions(device=torch.device("meta"), fused=False))
        for role in (Role.POLICY, Role.REWARD)
    )
    assert root.attention.layout == "packed"
    enable_recompute(root.hf, root.slot)
    cache_for(root.hf, 1)
    assert bool(list(quantized_linear.frozen_linears(root.hf, frozen=False))) == (not family_of(kind).conv1d)
    uncut = None
    try:
        how_cut(root, 2, sequence_parallel=True)
    except ConfigError as error:
        uncut = error.diagnostics[0].code
    no_plan, mixture = not family_of(kind).tensor_plan, kind in ("mixtral", "qwen3_moe")
    assert uncut == ("models.tp_no_plan" if no_plan else "models.tp_style" if mixture else None)
