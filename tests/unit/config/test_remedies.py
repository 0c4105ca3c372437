"""What a refusal says to write instead is accepted: each alternative of a hint, written into the config."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from remedies import alternatives, applied
from support import swept

from paceline.config.load import load_config
from paceline.config.registries.optimizers import BUILT
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import CHOOSERS, STRATEGIES
from paceline.plan.hardware.probe import Hardware
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import try_plan

GIB = 2**30
PACKAGES = {"deepspeed": "0.19.8", "peft": "0.19", "bitsandbytes": "0.49"}
CPU = Hardware(
    *(
        "cpu",
        "Some CPU",
        1,
        24 * GIB,
        24 * GIB,
        1,
        True,
        True,
        8,
        None,
        ("gloo",),
        "no CUDA device",
        ("bf16",),
    ),
    packages=PACKAGES,
)
H100 = Hardware(
    *("cuda", "NVIDIA H100 80GB HBM3", 8, 80 * GIB, 1024 * GIB, 1, True, True, 96, {"bfloat16": 989e12}),
    *(("nccl", "gloo"), "8 CUDA devices", (), 9.0),
    packages=PACKAGES,
)
V100 = replace(H100, device_name="Tesla V100", bf16=False)
MPS = replace(CPU, device="mps", device_name="Apple M2")
#: Machines and processes.
MACHINES = ((CPU, 1), (CPU, 2), (H100, 8), (H100, 1), (V100, 4), (MPS, 1))

Tree = dict[str, Any]
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
BASE: Tree = {
    "model": {"config": MODEL, "tokenizer": "org/tokenizer"},
    "data": {"train": "rows.jsonl", "max_length": 256},
}


def _zero(stage: int, **more: Any) -> Tree:
    return {"deepspeed": {"zero_optimization": {"stage": stage}, **more}}


def _sizes(strategy: str | None = None, **sizes: Any) -> Tree:
    return {"parallelism": sizes} | ({"distributed_strategy": strategy} if strategy else {})


#: How the model is spread: settings of ``training``.
SPREAD: tuple[Tree, ...] = (
    {},
    *({"distributed_strategy": name} for name in (*STRATEGIES.names(), *CHOOSERS)),
    *(_zero(stage) for stage in range(4)),
    _zero(1, tensor_parallel={"autotp_size": 2}),
    _zero(2, fp16={"enabled": True}),
    _zero(2, bf16={"enabled": True}),
    *({"fsdp": words} for words in ("full_shard", "hybrid_shard", "full_shard offload")),
    {"fsdp": "full_shard", "fsdp_config": {"min_num_params": 1000}},
    {"distributed_strategy": "ddp", "fsdp": "full_shard"},
    {"distributed": False},
    {"distributed": True},
    *(_sizes(tp_size=2), _sizes(cp_size=2), _sizes(pp_size=2), _sizes(dp_replicate_size=2)),
    *(_sizes("fsdp", tp_size=2, cp_size=2), _sizes("fsdp", tp_size=2, dp_replicate_size=2)),
    *(_sizes("pipeline", pp_size=2, tp_size=2), _sizes("pipeline", pp_size=2, cp_size=2)),
    *(_sizes("pipeline", pp_size=2, pp_schedule="zero_bubble"), _sizes("zero2", pp_size=2)),
)
ROLLOUT = {"rewards": ["exact_match"], "max_completion_length": 64}
TAUGHT = {"algorithm": "distillation", "distillation": {"teacher_model": "org/teacher"}}
_GROUPS = {"rewards": ["exact_match"], "num_generations": 3}
#: What is trained: settings of the whole config.
TRAINED: tuple[Tree, ...] = (
    *(
        {"training": settings}
        for settings in (
            *({"optim": name} for name in BUILT),
            *({"algorithm": name} for name in ("dpo", "kto", "orpo", "reward", "classification")),
            *({"algorithm": name, "rollout": ROLLOUT} for name in ("grpo", "ppo", "reinforce_plus_plus")),
            *(TAUGHT, {"algorithm": "distillation"}),
            {"algorithm": "dpo", "dpo": {"loss_type": "ipo", "label_smoothing": 0.1}},
            {"algorithm": "grpo", "rollout": _GROUPS, "per_device_train_batch_size": 2},
            {"algorithm": "grpo", "rollout": ROLLOUT | {"max_completion_length": 5000}},
            {"algorithm": "ppo", "rollout": ROLLOUT | {"filter_groups": True}},
            *({"mixed_precision": word} for word in ("fp16", "bf16")),
            *({key: True} for key in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval", "pure_bf16")),
            *(
                {key: True}
                for key in ("full_determinism", "torch_compile", "gradient_checkpointing", "use_cpu")
            ),
            {"ddp_backend": "nccl"},
            *(
                {key: 0}
                for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps")
            ),
            *({"load_best_model_at_end": True}, {"load_best_model_at_end": True, "eval_strategy": "epoch"}),
            *({"early_stopping_patience": 3}, {"save_strategy": "best"}, {"eval_strategy": "steps"}),
            {"eval_strategy": "epoch", "eval_generate": True},
            {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "adam_beta1": 0.0},
        )
    ),
    *(
        {"lora": settings}
        for settings in (
            *({"r": 8}, {"quantization_bit": 4}, {"quantization_bit": 8}),
            {"quantization_bit": 4, "bias": "all"},
            *({"target_modules": ["q_proj", "lm_head"]}, {"target_modules": ["lm_head"]}),
            {"target_parameters": ["mlp.experts.gate_up_proj"]},
        )
    ),
    *({"model": {"dtype": name}} for name in ("float64", "bfloat16", "float16")),
    {"model": {"dtype": "float16"}, "training": {"fp16": True}},
    {"model": {"dtype": "bfloat16"}, "training": {"mixed_precision": "no"}},
    *({"training": settings} for settings in ({"fp8": True}, {"fp8": True, "mixed_precision": "fp16"})),
    *({"model": {"attn_implementation": name}} for name in ("flash_attention_2", "flex_attention")),
    *({"data": {"packing": True}}, {"data": {"max_length": 4096}}),
)
#: Found only once there is a mesh or a device for every process: the refusal before hid it.
LATER = {
    *("plan.adapter_strategy", "plan.quantised_strategy", "plan.balance_loss_split", "plan.too_few_devices"),
    *("plan.fastest_unknown", "prec.bf16_weights", "prec.fp8", "rollout.groups", "strategy.deepspeed_fp16"),
    *("plan.adapter_experts", "plan.fastest_nothing", "prec.full_eval"),
    "back.nccl_cpu",  # the backend of another device, once use_cpu is the remedy
}


def merged(tree: Mapping[str, Any], more: Mapping[str, Any]) -> Tree:
    result = copy.deepcopy(dict(tree))
    for key, value in more.items():
        inner = result.get(key)
        nested = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if nested else copy.deepcopy(value)
    return result


def findings(tree: Tree, hardware: Hardware, processes: int) -> list[Diagnostic]:
    """All errors and warnings that a plan of this config meets on this machine."""
    try:
        loaded = load_config(None, tree=tree, environ={})
    except ConfigError as error:
        return list(error.diagnostics)
    on_cpu = replace(CPU, num_devices=1) if loaded.config.training.use_cpu else hardware
    launcher = "torchrun" if processes > 1 else "single"
    job = Job(loaded.config, on_cpu, processes, 1, launcher, "run", None, {}, False)
    tried = try_plan(job, provenance=loaded.provenance)
    return [*tried.ruled, *tried.problems]


def refused_again(tree: Tree, hardware: Hardware, processes: int) -> Iterator[str]:
    """Yield each remedy that leaves its finding, or that another refusal answers."""
    before = findings(tree, hardware, processes)
    known = LATER | {d.code for d in errors(before)}
    known |= {"par.deepspeed"} if "par.product" in known else set()
    for finding in before:
        for lines in alternatives(finding.hint):
            mended = applied(tree, lines, finding)
            if mended is None:
                continue
            number = next((int(line.value) for line in lines if line.key == "--nproc"), processes)
            after = findings(mended, hardware, number)
            wrong = [d for d in after if d == finding or d in errors(after) and d.code not in known]
            if wrong:
                written = ", ".join(f"{line.key}: {line.value}" for line in lines)
                yield f"{finding.render()}\n  with {written}:\n{wrong[0].render()}"


def _cases() -> Iterator[tuple[Tree, Hardware, int]]:
    """Yield every way to spread with everything that is trained, on one of the machines."""
    for index, (spread, trained) in enumerate(product(SPREAD, TRAINED)):
        hardware, processes = MACHINES[index % len(MACHINES)]
        yield merged(merged(BASE, {"training": spread}), trained), hardware, processes


_ALL = [*_cases()]
_PARTS = 60


@pytest.mark.parametrize("cases", swept(((_ALL[i::_PARTS],) for i in range(_PARTS)), _PARTS, 17))
def test_a_remedy_is_not_refused_again(cases: list[tuple[Tree, Hardware, int]]) -> None:
    wrong = [text for case in cases for text in refused_again(*case)]
    assert not wrong, f"{len(wrong)} remedies:\n" + "\n\n".join(wrong)


_SIXTEEN = [trained for trained in TRAINED if "16" in str(trained) or "fp8" in str(trained)]


@pytest.mark.parametrize("spread", [{}, SPREAD[-2], {"fsdp": "full_shard offload"}], ids=str)
def test_a_remedy_fits_a_device_without_bf16(spread: Tree) -> None:
    trees = [merged(merged(BASE, {"training": spread}), trained) for trained in _SIXTEEN]
    wrong = [text for tree in trees for text in refused_again(tree, V100, 4)]
    assert len(trees) > 10 and not wrong, f"{len(wrong)} remedies:\n" + "\n\n".join(wrong)


def test_an_inner_key_on_the_command_line_is_no_other_name() -> None:
    word = "training.gradient_checkpointing_kwargs.use_reentrant=true"
    loaded = load_config(None, overrides=[word], tree=BASE, environ={})
    job = Job(loaded.config, CPU, 1, 1, "single", "run", None, {}, False)
    (found,) = [d for d in try_plan(job, provenance=loaded.provenance).ruled if d.code == "train.reentrant"]
    assert found.hint == "gradient_checkpointing_kwargs: {use_reentrant: false}"
