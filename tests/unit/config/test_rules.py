"""Each rule with one config that breaks it and one neighbour that does not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.core.diagnostics import Severity, all_codes
from paceline.rules import RULES, check
from paceline.rules.rule import Facts

CPU = Facts(device="cpu", bf16=True, fp16=True, backends=frozenset({"gloo"}), world_size=2)
LLAMA = Facts(
    config_fields=("hidden_size",),
    config_words=frozenset({"hidden_size", "rope_theta", "text_config", "dtype"}),
)
OLD_GPU = Facts(
    device="cuda", device_name="Tesla V100", bf16=False, fp16=True, backends=frozenset({"gloo", "nccl"})
)
IB = Facts(device="cuda", num_nodes=2, infiniband=True, memlock_unlimited=False)
ANSWERED: dict[str, Any] = {"eval_generate": True, "eval_strategy": "epoch", "eval_metrics": ["f1"]}
MESH_4 = {"dp_replicate_size": 2, "tp_size": 2}
SHAPE = {"model_type": "llama"}
PINNED = "0123456789" * 4


@dataclass(frozen=True)
class Case:
    """``bad`` and ``good`` are settings by dotted path; facts may differ between the two."""

    code: str
    bad: dict[str, Any]
    good: dict[str, Any]
    facts: Facts = field(default_factory=Facts)
    good_facts: Facts | None = None
    starting: bool = False
    severity: Severity = Severity.ERROR


def case(
    code: str, bad: dict[str, Any], good: dict[str, Any], facts: Facts | None = None, **more: Any
) -> Case:
    return Case(code, bad, good, facts or Facts(), **more)


def _t(**settings: Any) -> dict[str, Any]:
    return {f"training.{name}": value for name, value in settings.items()}


def _triple(total: int) -> dict[str, Any]:
    return {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }


WARNING = Severity.WARNING
CODE = {"rewards": "code", "allow_code_execution": True}
ONE_ROW, UNPACKED = Facts(world_size=1), {"data.packing": False}
JUDGE = {"name": "model", "options": {"model": "outputs/reward/model"}}
TAUGHT = {"teacher_model": "org/teacher"}

CASES = [
    case("batch.positive", _t(per_device_train_batch_size=0), _t(per_device_train_batch_size=1)),
    case("batch.positive", _t(gradient_accumulation_steps=-1), _t(gradient_accumulation_steps=2)),
    case(
        "batch.triple",
        _t(deepspeed=_triple(32), per_device_train_batch_size=4, gradient_accumulation_steps=8),
        _t(deepspeed=_triple(128), per_device_train_batch_size=4, gradient_accumulation_steps=8),
        Facts(world_size=4),
        severity=WARNING,
    ),
    case(
        "strategy.pairs",
        _t(algorithm="reward", parallelism={"dp_shard_size": 1, "cp_size": 2}),
        _t(algorithm="reward", parallelism={"dp_shard_size": 2}),
    ),
    case(
        "strategy.pairs",
        _t(algorithm="reward", parallelism={"tp_size": 2}),
        _t(algorithm="dpo", parallelism={"tp_size": 2}),
    ),
    case(
        "strategy.pairs",
        _t(algorithm="dpo", deepspeed={"tensor_parallel": {"autotp_size": 2}}),
        _t(algorithm="dpo", deepspeed={"zero_optimization": {"stage": 1}}),
    ),
    case(
        "strategy.pairs",
        _t(algorithm="dpo", distributed_strategy="data_parallel"),
        _t(algorithm="dpo", distributed_strategy="ddp"),
    ),
    case(
        "strategy.pairs",
        _t(algorithm="kto", parallelism={"cp_size": 2}),
        _t(algorithm="kto", distributed_strategy="ddp"),
    ),
    case(
        "kto.one_row",
        _t(algorithm="kto", per_device_train_batch_size=1) | UNPACKED,
        _t(algorithm="kto", per_device_train_batch_size=1, gradient_accumulation_steps=2) | UNPACKED,
        ONE_ROW,
    ),
    case(
        "kto.one_row",
        _t(algorithm="kto", per_device_train_batch_size=1) | UNPACKED,
        _t(algorithm="kto", per_device_train_batch_size=1, kto={"loss_type": "apo_zero_unpaired"}) | UNPACKED,
        ONE_ROW,
    ),
    case(
        "rollout.server_tower",
        _t(algorithm="grpo", rollout={"server": {"url": "http://h:1"}}),
        _t(algorithm="grpo", rollout={"server": {"url": "http://h:1"}}),
        Facts(composite="gemma3"),
        good_facts=Facts(composite=""),
    ),
    case(
        "train.algorithm_section",
        _t(algorithm="sft", dpo={"beta": 0.2}),
        _t(algorithm="dpo", dpo={"beta": 0.2}),
        severity=WARNING,
    ),
    case(
        "classification.labels",
        _t(algorithm="classification", classification={"labels": ["a", "a"]}),
        _t(algorithm="classification", classification={"labels": ["a", "b"]}),
    ),
    case(
        "classification.labels",
        _t(algorithm="classification", classification={"labels": ["a", "b"], "num_labels": 3}),
        _t(algorithm="classification", classification={"num_labels": 3}),
    ),
    case(
        "prec.lost_updates",
        _t(pure_bf16=True, learning_rate=5e-7),
        _t(pure_bf16=True, learning_rate=5e-7, optim="adamw_bf16_rounding"),
        severity=WARNING,
    ),
    case(
        "data.retrieval_prompt",
        {"data.query_prompt": "Query: "},
        _t(algorithm="embedding") | {"data.query_prompt": "Query: "},
        severity=WARNING,
    ),
    case(
        "embedding.loss_type",
        _t(algorithm="embedding", embedding={"loss_type": "cosine_similarity", "symmetric": True}),
        _t(algorithm="embedding", embedding={"symmetric": True}),
        severity=WARNING,
    ),
    case(
        "embedding.loss_type",
        _t(
            algorithm="embedding",
            embedding={"loss_type": "cosine_similarity"},
            metric_for_best_model="mrr",
            eval_strategy="steps",
        ),
        _t(algorithm="embedding", metric_for_best_model="mrr", eval_strategy="steps"),
    ),
    case(
        "algorithm.no_teacher",
        _t(algorithm="distillation"),
        _t(algorithm="distillation", distillation=TAUGHT),
    ),
    case(
        "strategy.divergence",
        _t(
            algorithm="distillation",
            distillation=TAUGHT,
            distributed_strategy="fsdp",
            parallelism={"tp_size": 2},
        ),
        _t(
            algorithm="distillation",
            distillation=TAUGHT,
            distributed_strategy="fsdp",
            parallelism={"cp_size": 2},
        ),
    ),
    case(
        "strategy.divergence",
        _t(
            algorithm="distillation",
            distillation=TAUGHT,
            distributed_strategy="pipeline",
            parallelism={"pp_size": 2},
        ),
        _t(algorithm="distillation", distillation=TAUGHT, distributed_strategy="data_parallel"),
    ),
    case(
        "strategy.rollouts",
        _t(
            algorithm="distillation",
            distillation=TAUGHT | {"lmbda": 0.5},
            distributed_strategy="fsdp",
            parallelism={"cp_size": 2},
        ),
        _t(algorithm="distillation", distillation=TAUGHT | {"lmbda": 0.5}, distributed_strategy="fsdp"),
    ),
    case(
        "data.packing_eval",
        _t(algorithm="distillation", distillation=TAUGHT | {"lmbda": 0.5}) | {"data.packing": True},
        _t(algorithm="distillation", distillation=TAUGHT) | {"data.packing": True},
    ),
    *[
        case(
            "distillation.lmbda_off",
            _t(algorithm="distillation", distillation=TAUGHT | option),
            _t(algorithm="distillation", distillation=TAUGHT | option | {"lmbda": 0.5}),
            severity=WARNING,
        )
        for option in ({"max_completion_length": 9}, {"sampling_temperature": 0.0})
    ],
    case(
        "dpo.reference",
        _t(algorithm="dpo", dpo={"reference_free": True, "ref_model": "m"}),
        _t(algorithm="dpo", dpo={"reference_free": True}),
    ),
    *[
        case(
            "data.train_on_idle",
            _t(algorithm=algorithm, **options) | {"data.train_on": word},
            _t(algorithm=algorithm, **options),
            severity=WARNING,
        )
        for algorithm, word, options in (
            ("dpo", "all", {}),
            ("kto", "completion", {}),
            ("reward", "last", {}),
            ("classification", "assistant", {"classification": {"num_labels": 2}}),
            ("ppo", "all", {"rollout": {"rewards": ["ended"]}}),
        )
    ],
    case(
        "algorithm.option_idle",
        _t(algorithm="dpo", dpo={"mean_of_means": True}),
        _t(algorithm="dpo", dpo={"mean_of_means": True, "rpo_alpha": 0.2}),
        severity=WARNING,
    ),
    case(
        "algorithm.option_idle",
        _t(sft={"loss_type": "dft", "eaft_alpha": 2.0}),
        _t(sft={"loss_type": "eaft", "eaft_alpha": 2.0}),
        severity=WARNING,
    ),
    case(
        "dpo.label_smoothing",
        _t(algorithm="dpo", dpo={"loss_type": "ipo", "label_smoothing": 0.1}),
        _t(algorithm="dpo", dpo={"loss_type": "robust", "label_smoothing": 0.1}),
    ),
    *[
        case(
            "train.learning_rate",
            _t(learning_rate=bad, optim=name),
            _t(learning_rate=good, optim=name),
            severity=WARNING,
        )
        for name, bad, good in (
            ("adamw_torch_fused", 1000, 0.1),
            ("adamw_torch", 0.5, 1e-3),
            ("sgd", 1e6, 30),
            ("sgd", 0, 1e-6),
            ("adagrad", 2, 0.5),
            ("rmsprop", 1, 1e-3),
            ("adafactor", 1, 1e-3),
        )
    ],
    case("train.max_grad_norm", _t(max_grad_norm=1e-12), _t(max_grad_norm=1e-3), severity=WARNING),
    case(
        "train.router_scope",
        _t(router_aux_loss_scope="micro_batch", router_aux_loss_coef=0.0),
        _t(router_aux_loss_scope="micro_batch", router_aux_loss_coef=0.01),
        severity=WARNING,
    ),
    case("train.weight_decay", _t(weight_decay=1e10), _t(weight_decay=0.1), severity=WARNING),
    case("train.adam_epsilon", _t(adam_epsilon=1e5), _t(adam_epsilon=1e-6), severity=WARNING),
    case(
        "train.schedule_options",
        _t(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs={"num_decay_steps": 5}, max_steps=4),
        _t(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs={"num_decay_steps": 5}, max_steps=5),
    ),
    case("model.added_tokens", {"model.add_tokens": ["", ""]}, {"model.add_tokens": ["<a>", "<b>"]}),
    case("train.max_grad_norm", _t(max_grad_norm=1e-10), _t(max_grad_norm=0), severity=WARNING),
    case("train.max_steps", _t(max_steps=0), _t(max_steps=-1)),
    case("train.warmup", _t(warmup_steps=1.5), _t(warmup_steps=0.5)),
    case(
        "train.warmup",
        _t(warmup_steps=200, max_steps=100),
        _t(warmup_steps=20, max_steps=100),
        severity=WARNING,
    ),
    case(
        "train.warmup_constant",
        _t(warmup_steps=5, lr_scheduler_type="constant"),
        _t(warmup_steps=5, lr_scheduler_type="constant_with_warmup"),
        severity=WARNING,
    ),
    case("train.logging_steps", _t(logging_steps=0), _t(logging_steps=0.1)),
    case("train.profile", _t(profile={"steps": [0]}), _t(profile={"steps": [1]})),
    case("train.report_to", _t(report_to=["comet_ml"]), _t(report_to=["wandb"])),
    case("train.callback", _t(callbacks=["stop_below"]), _t(callbacks=["my_parts:StopBelow"])),
    case("device.float64", {"model.dtype": "float64"}, {"model.dtype": "float32"}, Facts(device="mps")),
    case(
        "device.float64",
        {"model.dtype": "float64"},
        {"model.dtype": "float64"},
        Facts(device="npu", world_size=2),
        good_facts=Facts(device="npu", world_size=1),
    ),
    case(
        "device.alone",
        {},
        {},
        Facts(device="mps", world_size=2),
        good_facts=Facts(device="mps", world_size=1),
    ),
    case(
        "device.alone",
        _t(distributed_strategy="zero2"),
        _t(distributed_strategy="single"),
        Facts(device="mps", world_size=1),
    ),
    case(
        "device.gloo",
        _t(ddp_backend="gloo"),
        _t(ddp_backend="gloo"),
        Facts(device="npu", world_size=2),
        good_facts=Facts(device="cuda", world_size=2),
    ),
    case(
        "device.determinism",
        _t(full_determinism=True),
        _t(full_determinism=True),
        Facts(device="xpu", world_size=1),
        good_facts=Facts(device="cuda", world_size=1),
    ),
    case(
        "device.quantised",
        {"lora.quantization_bit": 4},
        {"lora.quantization_bit": 4},
        Facts(device="npu", world_size=1),
        good_facts=Facts(device="xpu", world_size=1),
    ),
    case(
        "train.optimizer_device",
        _t(optim="adamw_bnb_8bit"),
        _t(optim="adamw_torch"),
        Facts(device="npu", world_size=1),
    ),
    case(
        "model.dtype",
        {"model.dtype": "bfloat16"},
        {"model.dtype": "bfloat16", "training.pure_bf16": True},
        severity=Severity.WARNING,
    ),
    case(
        "train.optim_target_modules",
        _t(optim="sgd", optim_target_modules=["mlp"]),
        _t(optim="galore_adamw", optim_target_modules=["mlp"]),
    ),
    case("train.optimizer", _t(optim="grokadamw"), _t(optim="sgd")),
    case(
        "train.optimizer_device",
        _t(optim="paged_lion_8bit"),
        _t(optim="lion_8bit"),
        facts=Facts(device="cpu"),
    ),
    case(
        "train.optimizer_float64",
        {**_t(optim="adamw_bnb_8bit"), "model.dtype": "float64"},
        {**_t(optim="adamw_torch"), "model.dtype": "float64"},
    ),
    case(
        "train.schedule_free",
        _t(optim="schedule_free_adamw"),
        _t(optim="schedule_free_adamw", lr_scheduler_type="constant"),
    ),
    case(
        "train.schedule_free",
        _t(optim="schedule_free_adamw", lr_scheduler_type="constant", warmup_steps=0.1),
        _t(optim="schedule_free_adamw", lr_scheduler_type="constant", warmup_steps=10),
    ),
    case(
        "train.schedule_free",
        _t(optim="schedule_free_radam", lr_scheduler_type="constant", adam_beta1=0),
        _t(optim="schedule_free_radam", lr_scheduler_type="constant"),
    ),
    case(
        "strategy.optimizer_split",
        _t(optim="muon", distributed_strategy="zero3"),
        _t(optim="muon", distributed_strategy="zero_redundancy"),
    ),
    case(
        "strategy.optimizer_split",
        _t(optim="schedule_free_sgd", lr_scheduler_type="constant", distributed_strategy="zero_redundancy"),
        _t(optim="schedule_free_sgd", lr_scheduler_type="constant", distributed_strategy="ddp"),
    ),
    case(
        "strategy.optimizer_split",
        _t(optim="adamw_bnb_8bit", distributed_strategy="zero2"),
        _t(optim="adamw_bnb_8bit", distributed_strategy="fsdp"),
    ),
    case(
        "train.optim_args",
        _t(optim="sgd", optim_args="momentun=0.9"),
        _t(optim="sgd", optim_args="momentum=0.9"),
    ),
    case(
        "train.schedule_options",
        _t(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": -1}),
        _t(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 0.5}),
    ),
    case("train.schedule", _t(lr_scheduler_type="greedy"), _t(lr_scheduler_type="cosine")),
    case(
        "train.schedule_options",
        _t(lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycls": 2}),
        _t(lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": 2}),
    ),
    case(
        "train.best_is_worst",
        _t(metric_for_best_model="token_accuracy", greater_is_better=False),
        _t(greater_is_better=False),
        severity=Severity.WARNING,
    ),
    case("train.best_metric", _t(metric_for_best_model="rouge1"), _t(metric_for_best_model="token_accuracy")),
    case(
        "train.eval_generate",
        _t(eval_generate=True),
        _t(eval_generate=True, eval_strategy="epoch"),
    ),
    case(
        "train.eval_generate",
        _t(eval_generate=True, eval_strategy="epoch", algorithm="kto"),
        _t(eval_generate=True, eval_strategy="epoch", algorithm="dpo"),
    ),
    case(
        "train.eval_metrics",
        _t(eval_metrics=["pass@4"]),
        _t(eval_metrics=["rouge", "my_module:metric"]),
    ),
    case(
        "strategy.eval_generate",
        _t(eval_generate=True, eval_strategy="epoch", distributed_strategy="pipeline"),
        _t(eval_generate=True, eval_strategy="epoch", distributed_strategy="fsdp"),
    ),
    case("train.best_metric", _t(metric_for_best_model="f1"), _t(**ANSWERED, metric_for_best_model="f1")),
    case(
        "train.reentrant",
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}),
    ),
    case(
        "config.unknown_key",
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"reentrant": False}),
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}),
    ),
    case(
        "train.recompute_off",
        _t(gradient_checkpointing_kwargs={"use_reentrant": False}),
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}),
        severity=WARNING,
    ),
    case(
        "train.recompute_compiled",
        _t(
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"keep": "attention"},
            torch_compile=True,
        ),
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"keep": ["attention", "matmul"]}),
    ),
    case(
        "config.value",
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"keep": ["softmax"]}),
        _t(gradient_checkpointing=True, gradient_checkpointing_kwargs={"keep": ["matmul"]}),
    ),
    case(
        "train.compile_off",
        _t(torch_compile_mode="max-autotune"),
        _t(torch_compile=True, torch_compile_mode="max-autotune"),
        severity=WARNING,
    ),
    case("prec.fp16_bf16_eval", _t(fp16_full_eval=True, bf16_full_eval=True), _t(bf16_full_eval=True)),
    case("prec.bf16_hw", _t(mixed_precision="bf16"), _t(mixed_precision="fp16"), OLD_GPU),
    case("prec.bf16_hw", _t(bf16_full_eval=True), _t(fp16_full_eval=True), OLD_GPU),
    case(
        "prec.fp16_hw",
        _t(mixed_precision="fp16"),
        _t(mixed_precision="auto"),
        Facts(device="cpu", fp16=False),
    ),
    case(
        "model.config_key",
        {"model.config": {"model_type": "llama", "hiden_size": 8}},
        {"model.config": {"model_type": "llama", "hidden_size": 8}},
        LLAMA,
    ),
    case(
        "model.config_key",
        {"model.config": {"model_type": "x", "text_config": {"hiddensize": 8}}},
        {"model.config": {"model_type": "x", "text_config": {"hidden_size": 8}}},
        LLAMA,
    ),
    case(
        "model.config_unread",
        {"model.config": {"model_type": "llama", "n_layer": 8}},
        {"model.config": {"model_type": "llama", "rope_theta": 8}},
        LLAMA,
        severity=WARNING,
    ),
    case(
        "model.config_unread",
        {"model.config": {"model_type": "llama", "dtype": "bfloat16"}},
        {"model.config": {"model_type": "llama"}},
        LLAMA,
        severity=WARNING,
    ),
    case(
        "prec.bf16_pretrained_fp16",
        _t(mixed_precision="fp16"),
        _t(mixed_precision="bf16"),
        Facts(pretrained_dtype="bfloat16"),
        severity=WARNING,
    ),
    case(
        "prec.min_loss_scale",
        _t(deepspeed={"fp16": {"enabled": True, "loss_scale": 0, "min_loss_scale": 0}}),
        _t(deepspeed={"fp16": {"enabled": True, "loss_scale": 0, "min_loss_scale": 1}}),
    ),
    case(
        "prec.amp_zero",
        _t(deepspeed={"amp": {"enabled": True}, "zero_optimization": {"stage": 1}}),
        _t(deepspeed={"amp": {"enabled": False}, "zero_optimization": {"stage": 1}}),
    ),
    case("strategy.unknown", _t(distributed_strategy="dpp"), _t(distributed_strategy="ddp")),
    case("strategy.unknown", _t(distributed_strategy="MyClass"), _t(distributed_strategy="mine:MyClass")),
    case("algorithm.options", _t(algorithm_options={"a": 1}), _t(), severity=WARNING),
    case(
        "strategy.options",
        _t(strategy_options={"a": 1}),
        _t(strategy_options={"a": 1}, distributed_strategy="mine:MyClass"),
        severity=WARNING,
    ),
    case(
        "back.fsdp_ds",
        _t(fsdp="full_shard", deepspeed={"zero_optimization": {"stage": 2}}),
        _t(fsdp="full_shard"),
    ),
    case(
        "back.strategy_vs_file",
        _t(deepspeed={"bf16": {}}, distributed_strategy="ddp"),
        _t(deepspeed={"bf16": {}}, distributed_strategy="deepspeed"),
    ),
    case(
        "back.strategy_vs_file",
        _t(deepspeed={"zero_optimization": {"stage": 2}}, distributed_strategy="zero3"),
        _t(deepspeed={"zero_optimization": {"stage": 3}}, distributed_strategy="zero3"),
    ),
    case(
        "back.strategy_vs_file",
        _t(fsdp="full_shard", distributed_strategy="ddp"),
        _t(fsdp="full_shard", distributed_strategy="fsdp"),
    ),
    case(
        "back.distributed_flag",
        _t(distributed=False, distributed_strategy="ddp"),
        _t(distributed=True, distributed_strategy="ddp"),
    ),
    case(
        "back.distributed_flag",
        _t(distributed=True, distributed_strategy="single"),
        _t(distributed=False, distributed_strategy="single"),
    ),
    case(
        "back.distributed_alone",
        _t(distributed=True),
        _t(distributed=True),
        Facts(world_size=1),
        good_facts=Facts(world_size=2),
        severity=WARNING,
    ),
    case(
        "back.one_process",
        _t(distributed_strategy="single"),
        _t(distributed_strategy="auto"),
        Facts(world_size=2),
    ),
    case(
        "back.fsdp_single",
        _t(distributed_strategy="fsdp"),
        _t(distributed_strategy="fsdp"),
        Facts(world_size=1),
        good_facts=Facts(world_size=2),
    ),
    case("back.nccl_cpu", _t(ddp_backend="nccl"), _t(ddp_backend="gloo"), CPU),
    case("back.nccl_cpu", _t(ddp_backend="nccl"), _t(ddp_backend="nccl"), CPU, good_facts=OLD_GPU),
    case("back.nccl_cpu", _t(ddp_backend="nccl", use_cpu=True), _t(ddp_backend="auto", use_cpu=True)),
    case("back.not_built", _t(ddp_backend="mpi"), _t(ddp_backend="gloo"), CPU),
    case(
        "xla.not_run",
        _t(fsdp_config={"xla": True}),
        _t(fsdp_config={"xla": False}),
        starting=True,
        severity=WARNING,
    ),
    case(
        "back.node_rank",
        {"launch.nnodes": 2, "launch.node_rank": 2},
        {"launch.nnodes": 2, "launch.node_rank": 1},
    ),
    case(
        "back.multi_node_port",
        {"launch.nnodes": 2, "model.config": SHAPE},
        {"launch.nnodes": 2, "launch.master_port": 29500},
        starting=True,
    ),
    case("par.sizes_ge1", {"training.parallelism": {"tp_size": 0}}, {"training.parallelism": {"tp_size": 1}}),
    case(
        "par.product",
        {"training.parallelism": {"dp_shard_size": 3}},
        {"training.parallelism": {"dp_shard_size": 4}},
        Facts(world_size=4),
    ),
    case(
        "par.tp_pure_dp",
        {"training.parallelism": MESH_4},
        {"training.parallelism": {"dp_shard_size": 2, "tp_size": 2}},
    ),
    case(
        "par.tp_heads",
        {"training.parallelism": {"tp_size": 3}},
        {"training.parallelism": {"tp_size": 4}},
        Facts(num_attention_heads=8),
    ),
    case(
        "par.tp_kv_heads",
        {"training.parallelism": {"tp_size": 4}},
        {"training.parallelism": {"tp_size": 2}},
        Facts(num_attention_heads=8, num_key_value_heads=2),
    ),
    case(
        "par.tp_node",
        {"training.parallelism": {"tp_size": 4}},
        {"training.parallelism": {"tp_size": 2}},
        Facts(world_size=4, num_nodes=2),
    ),
    case(
        "par.cp_heads",
        {"training.parallelism": {"cp_size": 3}},
        {"training.parallelism": {"cp_size": 3, "cp_method": "allgather"}},
        Facts(num_attention_heads=8),
    ),
    case(
        "par.product",
        {"training.parallelism": {"dp_shard_size": 2, "tp_size": 2}},
        {"training.parallelism": {"tp_size": 2}},
        Facts(world_size=8),
    ),
    case(
        "par.strategy",
        {"training.parallelism": {"tp_size": 2}, "training.distributed_strategy": "ddp"},
        {"training.parallelism": {"tp_size": 2}, "training.distributed_strategy": "fsdp"},
    ),
    case(
        "par.strategy",
        {"training.parallelism": {"pp_size": 2}, "training.distributed_strategy": "fsdp"},
        {"training.parallelism": {"pp_size": 2}, "training.distributed_strategy": "pipeline"},
    ),
    case(
        "par.strategy",
        {"training.parallelism": {"dp_shard_size": 2}, "training.distributed_strategy": "data_parallel"},
        {"training.distributed_strategy": "data_parallel"},
    ),
    case(
        "par.pp_cp",
        {"training.parallelism": {"pp_size": 2, "cp_size": 2}},
        {"training.parallelism": {"pp_size": 2, "tp_size": 2}},
    ),
    case(
        "zero.stage",
        _t(deepspeed={"zero_optimization": {"stage": 4}}),
        _t(deepspeed={"zero_optimization": {"stage": 3}}),
    ),
    case(
        "strategy.float64",
        {"model.dtype": "float64", "training.distributed_strategy": "zero1"},
        {"model.dtype": "float64", "training.distributed_strategy": "fsdp"},
    ),
    case(
        "strategy.fp16_offload",
        _t(fsdp="full_shard offload", mixed_precision="fp16"),
        _t(fsdp="full_shard offload", mixed_precision="bf16"),
    ),
    case(
        "strategy.fp16_offload",
        _t(fsdp="full_shard", fsdp_config={"cpu_offload": True}, mixed_precision="fp16"),
        _t(fsdp="full_shard", mixed_precision="fp16"),
    ),
    case(
        "strategy.fp16_pipeline",
        _t(distributed_strategy="pipeline", mixed_precision="fp16"),
        _t(distributed_strategy="pipeline", mixed_precision="bf16"),
    ),
    case(
        "strategy.compile",
        _t(torch_compile=True, parallelism={"cp_size": 2}),
        _t(torch_compile=True, parallelism={"tp_size": 2}),
    ),
    case(
        "strategy.compile",
        _t(torch_compile=True, fsdp="full_shard", fsdp_config={"min_num_params": 1000}),
        _t(torch_compile=True, fsdp="full_shard"),
    ),
    case(
        "strategy.compile",
        _t(torch_compile=True, distributed_strategy="zero2"),
        _t(torch_compile=True, distributed_strategy="ddp"),
    ),
    case(
        "strategy.pipeline_recompute",
        _t(gradient_checkpointing=True, parallelism={"pp_size": 2, "pp_schedule": "zbv"}),
        _t(gradient_checkpointing=True, parallelism={"pp_size": 2, "pp_schedule": "interleaved"}),
    ),
    case(
        "strategy.adafactor",
        _t(optim="adafactor", fsdp="full_shard"),
        _t(optim="adafactor", distributed_strategy="ddp"),
    ),
    case(
        "strategy.data_parallel",
        _t(distributed_strategy="data_parallel"),
        _t(distributed_strategy="ddp"),
        severity=WARNING,
    ),
    case(
        "par.cp_attention",
        {"training.parallelism": {"cp_size": 2}, "model.attn_implementation": "sdpa"},
        {"training.parallelism": {"cp_size": 2}, "model.attn_implementation": "auto"},
    ),
    case(
        "save.best_strategy",
        _t(load_best_model_at_end=True, eval_strategy="epoch"),
        _t(load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch"),
    ),
    case(
        "save.best_strategy",
        _t(load_best_model_at_end=True, eval_strategy="no", save_strategy="no"),
        _t(load_best_model_at_end=True, eval_strategy="epoch", save_strategy="best"),
    ),
    case(
        "save.best_steps",
        _t(load_best_model_at_end=True, eval_strategy="steps", eval_steps=30, save_steps=50),
        _t(load_best_model_at_end=True, eval_strategy="steps", eval_steps=25, save_steps=50),
    ),
    case("save.best_needs_eval", _t(save_strategy="best"), _t(save_strategy="best", eval_strategy="epoch")),
    case(
        "train.on_spike",
        _t(on_spike="skip", distributed_strategy="zero2", mixed_precision="fp16"),
        _t(on_spike="skip", distributed_strategy="zero2", mixed_precision="bf16"),
    ),
    case(
        "train.on_spike",
        _t(on_spike="skip", mixed_precision="fp16", deepspeed={"zero_optimization": {"stage": 1}}),
        _t(on_spike="skip", mixed_precision="fp16", deepspeed={"zero_optimization": {"stage": 0}}),
    ),
    case(
        "train.on_spike",
        _t(
            on_spike="skip",
            deepspeed={"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}},
        ),
        _t(
            on_spike="skip",
            deepspeed={"zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}},
        ),
    ),
    case(
        "train.on_spike",
        _t(
            on_spike="skip",
            deepspeed={"zero_optimization": {"stage": 2}, "bf16": {"check_grad_overflow": False}},
        ),
        _t(
            on_spike="rollback",
            deepspeed={"zero_optimization": {"stage": 2}, "bf16": {"check_grad_overflow": False}},
        ),
    ),
    case("train.on_spike", _t(on_spike="skip", algorithm="ppo"), _t(on_spike="skip", algorithm="grpo")),
    case("train.on_spike", _t(on_spike="rollback", algorithm="grpo"), _t(on_spike="skip", algorithm="grpo")),
    case("train.on_spike", _t(on_spike="rollback", save_strategy="no"), _t(on_spike="rollback")),
    case("save.steps_fraction", _t(save_steps=1.5), _t(save_steps=0.25)),
    case("save.total_limit", _t(save_total_limit=0), _t(save_total_limit=1)),
    case("save.keep_every", _t(save_keep_every=10), _t(save_keep_every=10, save_total_limit=1)),
    case("save.checkpoint_url", _t(checkpoint_url="hdfs://host/run"), _t(checkpoint_url="s3://bucket/run")),
    case(
        "save.checkpoint_url",
        _t(checkpoint_url="s3://bucket/run/step-00000001"),
        _t(resume_from_checkpoint="s3://bucket/run/step-00000001"),
    ),
    case("save.checkpoint_url", _t(resume_from_checkpoint="s3://key:secret@bucket/run"), _t()),
    case("save.keep_every", _t(save_keep_every=0, save_total_limit=1), _t()),
    case(
        "save.upload_timeout",
        _t(upload_timeout=60),
        _t(upload_timeout=60, checkpoint_url="file:///somewhere/run"),
    ),
    case("run.remote_folder", _t(output_dir="s3://bucket/run"), _t(output_dir="outputs/s3")),
    case("run.remote_folder", _t(output_dir="file:///tmp/run"), _t(output_dir="C:run")),
    case("run.remote_folder", {"data.cache_dir": "gs://bucket/cache"}, {"data.cache_dir": "/mnt/bucket"}),
    case("run.remote_folder", _t(resume_from_checkpoint="s3:/n/run"), _t(resume_from_checkpoint="auto")),
    case("save.checkpoint_url", _t(resume_from_checkpoint="hdfs://n/run"), _t(resume_from_checkpoint="auto")),
    case("run.name_leaves_outputs", _t(experiment_name="../../etc"), _t(experiment_name="group/try..2")),
    case(
        "run.name_leaves_outputs", _t(experiment_name="/etc"), _t(experiment_name="/etc", output_dir="here")
    ),
    case(
        "save.disk",
        _t(save_total_limit=3),
        _t(save_total_limit=2),
        Facts(checkpoint_bytes=10, disk_free_bytes=35),
    ),
    case(
        "eval.dataset",
        _t(eval_strategy="epoch"),
        {"training.eval_strategy": "epoch", "data.validation_split": 0.1},
        starting=True,
    ),
    case(
        "eval.early_stopping",
        _t(early_stopping_patience=2),
        _t(early_stopping_patience=2, eval_strategy="epoch"),
    ),
    case("eval.steps", _t(eval_strategy="steps", eval_steps=0), _t(eval_strategy="steps", eval_steps=10)),
    case(
        "resume.no_checkpoint",
        _t(resume_from_checkpoint="latest"),
        _t(resume_from_checkpoint="auto"),
        Facts(complete_checkpoints=0, incomplete_checkpoints=0),
    ),
    case(
        "resume.only_incomplete",
        _t(resume_from_checkpoint="auto"),
        _t(resume_from_checkpoint="auto"),
        Facts(complete_checkpoints=0, incomplete_checkpoints=2),
        good_facts=Facts(complete_checkpoints=1, incomplete_checkpoints=2),
    ),
    case(
        "resume.overwrite",
        _t(resume_from_checkpoint="latest", overwrite_output_dir=True),
        _t(overwrite_output_dir=True),
        severity=WARNING,
    ),
    case("data.missing", {}, {"data.train": ["a.jsonl"]}, starting=True),
    case(
        "data.prefetch",
        _t(dataloader_prefetch_factor=2),
        _t(dataloader_prefetch_factor=2, dataloader_num_workers=1),
    ),
    case(
        "data.max_pos",
        {"data.max_length": 2048},
        {"data.max_length": 1024},
        Facts(max_position_embeddings=1024),
    ),
    case(
        "data.packing_eval",
        {"data.packing": True, "training.algorithm": "grpo"},
        {"data.packing": True, "training.algorithm": "dpo"},
    ),
    case("data.validation_split", {"data.validation_split": -0.1}, {"data.validation_split": 0.1}),
    case("data.two_evals", {"data.validation_split": 0.1, "data.eval": ["e"]}, {"data.eval": ["e"]}),
    case(
        "data.one_weight",
        {"data.train": [{"path": "a", "weight": 2}]},
        {"data.train": [{"path": "a", "weight": 2}, {"path": "b"}]},
        severity=WARNING,
    ),
    case(
        "strategy.rollouts",
        _t(algorithm="grpo", distributed_strategy="pipeline"),
        _t(algorithm="grpo", distributed_strategy="fsdp"),
    ),
    case(
        "rollout.no_rewards",
        _t(algorithm="grpo", rollout={"num_generations": 2}),
        _t(algorithm="grpo", rollout={"rewards": "ended"}),
        starting=True,
    ),
    case(
        "rewards.code_off",
        _t(algorithm="grpo", rollout={"rewards": "code"}),
        _t(algorithm="grpo", rollout={"rewards": "code", "allow_code_execution": True}),
    ),
    case(
        "rewards.no_isolation",
        _t(algorithm="grpo", rollout=CODE),
        _t(algorithm="grpo", rollout=CODE),
        Facts(code_sandbox="unshare: no"),
        good_facts=Facts(code_sandbox=""),
    ),
    case(
        "rewards.no_isolation",
        _t(algorithm="grpo", rollout=CODE),
        _t(algorithm="grpo", rollout={**CODE, "rewards": "ended"}),
        Facts(code_sandbox="unshare: no"),
    ),
    case(
        "rewards.unsandboxed",
        _t(algorithm="grpo", rollout={**CODE, "allow_unsandboxed_code": True}),
        _t(algorithm="grpo", rollout={**CODE, "allow_unsandboxed_code": True}),
        Facts(code_sandbox="unshare: no"),
        good_facts=Facts(code_sandbox=""),
        severity=WARNING,
    ),
    case(
        "rewards.no_code",
        _t(algorithm="grpo", rollout={"rewards": "ended", "allow_unsandboxed_code": True}),
        _t(algorithm="grpo", rollout={**CODE, "allow_unsandboxed_code": True}),
        severity=WARNING,
    ),
    case(
        "rollout.length",
        {"data.max_length": 64, **_t(algorithm="grpo", rollout={"max_completion_length": 64})},
        {"data.max_length": 65, **_t(algorithm="grpo", rollout={"max_completion_length": 64})},
    ),
    case(
        "strategy.rollouts",
        _t(algorithm="ppo", distributed_strategy="fsdp", parallelism={"tp_size": 2}),
        _t(algorithm="grpo", distributed_strategy="fsdp", parallelism={"tp_size": 2}),
    ),
    case(
        "rewards.model_options",
        _t(algorithm="ppo", rollout={"rewards": ["model"]}),
        _t(algorithm="ppo", rollout={"rewards": [JUDGE, "ended"]}),
    ),
    case(
        "rewards.two_models",
        _t(algorithm="grpo", rollout={"rewards": [JUDGE, JUDGE]}),
        _t(algorithm="grpo", rollout={"rewards": [JUDGE]}),
    ),
    case(
        "ppo.kl_estimator",
        _t(algorithm="ppo", ppo={"kl_in": "loss"}),
        _t(algorithm="ppo", ppo={"kl_in": "loss", "kl_estimator": "k3"}),
    ),
    case(
        "ppo.kl_estimator",
        _t(algorithm="reinforce_plus_plus", reinforce_plus_plus={"kl_in": "loss"}),
        _t(algorithm="reinforce_plus_plus", reinforce_plus_plus={"kl_in": "loss", "beta": 0}),
    ),
    case(
        "ppo.adaptive_kl",
        _t(algorithm="ppo", ppo={"kl_coef": 0, "adap_kl_ctrl": True}),
        _t(algorithm="ppo", ppo={"kl_coef": 0.1, "adap_kl_ctrl": True}),
    ),
    case(
        "ppo.no_kl",
        _t(algorithm="rloo", rloo={"beta": 0, "ref_model": "a/b"}),
        _t(algorithm="rloo", rloo={"ref_model": "a/b"}),
    ),
    case(
        "ppo.no_kl",
        _t(algorithm="grpo", grpo={"ref_model": "a/b"}),
        _t(algorithm="grpo", grpo={"beta": 0.04, "ref_model": "a/b"}),
    ),
    case(
        "ppo.no_kl",
        _t(algorithm="ppo", ppo={"kl_coef": 0, "ref_model": "a/b"}),
        _t(algorithm="ppo", ppo={"ref_model": "a/b"}),
    ),
    case(
        "train.algorithm_section",
        _t(algorithm="grpo", ppo={"lam": 0.9}),
        _t(algorithm="ppo", ppo={"lam": 0.9}),
        severity=WARNING,
    ),
    case(
        "rollout.one_answer",
        _t(algorithm="grpo", rollout={"num_generations": 1}),
        _t(algorithm="grpo", rollout={"num_generations": 2}),
    ),
    case(
        "rollout.one_answer",
        _t(algorithm="reinforce_plus_plus", reinforce_plus_plus={"group_baseline": True}),
        _t(algorithm="reinforce_plus_plus"),
    ),
    case(
        "rollout.filter_groups",
        _t(algorithm="reinforce_plus_plus", rollout={"filter_groups": True}),
        _t(
            algorithm="reinforce_plus_plus",
            rollout={"filter_groups": True},
            reinforce_plus_plus={"group_baseline": True},
        ),
    ),
    case(
        "rollout.max_redraws",
        _t(algorithm="grpo", rollout={"max_redraws": 3}),
        _t(algorithm="grpo", rollout={"max_redraws": 3, "filter_groups": True}),
    ),
    case(
        "rollout.filter_groups",
        _t(algorithm="ppo", rollout={"filter_groups": True, "rewards": ["ended"]}),
        _t(algorithm="grpo", rollout={"filter_groups": True, "rewards": ["ended"]}),
    ),
    case(
        "rollout.correction",
        _t(algorithm="grpo", rollout={"old_logprobs": "sampling"}, grpo={"rollout_correction": "mask"}),
        _t(algorithm="grpo", grpo={"rollout_correction": "mask"}),
    ),
    case(
        "grpo.cispo_bound",
        _t(algorithm="grpo", grpo={"loss_type": "cispo"}),
        _t(algorithm="grpo", grpo={"loss_type": "cispo", "epsilon_high": 5.0}),
    ),
    case(
        "grpo.cispo_bound",
        _t(algorithm="grpo", grpo={"loss_type": "cispo", "epsilon_high": 0.28}),
        _t(algorithm="grpo", grpo={"loss_type": "dapo", "epsilon_high": 0.28}),
    ),
    case(
        "grpo.cispo_unused",
        _t(algorithm="grpo", grpo={"loss_type": "cispo", "epsilon_high": 5.0, "delta": 2.0}),
        _t(algorithm="grpo", grpo={"delta": 2.0}),
        severity=WARNING,
    ),
    case(
        "rollout.greedy",
        _t(algorithm="grpo", rollout={"temperature": 0}),
        _t(algorithm="grpo", rollout={"temperature": 0.1}),
        severity=WARNING,
    ),
    case(
        "rollout.server_url",
        _t(algorithm="grpo", rollout={"server": {"url": "localhost:8000"}}),
        _t(algorithm="grpo", rollout={"server": {"url": "http://localhost:8000"}}),
    ),
    case(
        "rollout.server_url",
        _t(algorithm="grpo", rollout={"server": {"url": "http://h:port"}}),
        _t(algorithm="grpo", rollout={"server": {"url": "https://h"}}),
    ),
    case(
        "rollout.server_url",
        _t(algorithm="grpo", rollout={"server": {"url": "http://user:pw@h:1"}}),
        _t(algorithm="grpo", rollout={"server": {"url": "http://h:1/"}}),
    ),
    case(
        "rollout.server_key",
        _t(algorithm="grpo", rollout={"server": {"url": "http://far:1", "api_key_env": "K"}}),
        _t(algorithm="grpo", rollout={"server": {"url": "http://localhost:1", "api_key_env": "K"}}),
        severity=WARNING,
    ),
    case(
        "rollout.server_public",
        _t(algorithm="grpo", rollout={"servers": ["http://8.8.8.8:1", "http://10.0.0.2:1"]}),
        _t(algorithm="grpo", rollout={"servers": ["http://10.0.0.1:1", "http://127.0.0.1:1"]}),
        severity=WARNING,
    ),
    case(
        "rollout.servers_twice",
        _t(algorithm="grpo", rollout={"servers": "http://h:1", "server": {"url": "http://g:1"}}),
        _t(algorithm="grpo", rollout={"servers": ["http://h:1", "http://g:1"]}),
    ),
    case(
        "rollout.start_nodes",
        {**_t(algorithm="grpo", rollout={"start": {"count": 2}}), "launch.nnodes": 2},
        _t(algorithm="grpo", rollout={"start": {"count": 2}}),
    ),
    case(
        "rollout.server_cut",
        {
            **_t(algorithm="grpo", rollout={"server": {"url": "http://h:1"}, "weights": "folder"}),
            "lora.quantization_bit": 4,
        },
        {**_t(algorithm="grpo", rollout={"server": {"url": "http://h:1"}}), "lora.quantization_bit": 4},
    ),
    case(
        "train.algorithm_section",
        _t(algorithm="sft", grpo={"beta": 0.1}),
        _t(algorithm="grpo", grpo={"beta": 0.1}),
        severity=WARNING,
    ),
    case("model.missing", {}, {"model.name_or_path": "m"}, starting=True),
    case("model.two", {"model.name_or_path": "m", "model.config": SHAPE}, {"model.config": SHAPE}),
    case(
        "model.tokenizer",
        {"model.config": SHAPE},
        {"model.config": SHAPE, "model.tokenizer": "t"},
        starting=True,
    ),
    case("model.type", {"model.config": {"hidden_size": 8}}, {"model.config": SHAPE}),
    case("model.dtype", {"model.dtype": "bfloat16"}, {"model.dtype": "auto"}, severity=WARNING),
    case(
        "model.attention_cpu",
        {"model.attn_implementation": "flash_attention_2"},
        {"model.attn_implementation": "sdpa"},
        CPU,
    ),
    case(
        "model.attention_cpu",
        {"model.attn_implementation": "flash_attention_2"},
        {"model.attn_implementation": "sdpa"},
        Facts(device="mps", world_size=1),
    ),
    case(
        "sec.trust_remote_code",
        {"model.trust_remote_code": True, "model.revision": "main"},
        {"model.trust_remote_code": True, "model.revision": PINNED},
    ),
    case(
        "sec.attention_kernel",
        {"model.attn_implementation": "org/kernel@main"},
        {
            "model.attn_implementation": f"org/kernel@{PINNED}",
            "model.trust_remote_code": True,
            "model.revision": PINNED,
        },
    ),
    case(
        "dpo.lm_head_adapter",
        {"lora.target_modules": ["q_proj", "lm_head"]},
        {"lora.target_modules": ["q_proj"]},
    ),
    case("peft.bits", {"lora.quantization_bit": 8}, {"lora.quantization_bit": 4}),
    case(
        "peft.pattern",
        {"lora.target_modules": [".*q_proj", "v_proj"]},
        {"lora.target_modules": [".*(q|v)_proj"]},
    ),
    case("peft.quant_bias", {"lora.quantization_bit": 4, "lora.bias": "all"}, {"lora.bias": "all"}),
    case(
        "peft.resize_quant",
        {"lora.quantization_bit": 4, "model.add_tokens": ["<x>"]},
        {"lora.quantization_bit": 4},
    ),
    case(
        "fsdp.act_ckpt_twice",
        _t(fsdp="full_shard", gradient_checkpointing=True, fsdp_config={"activation_checkpointing": True}),
        _t(fsdp="full_shard", gradient_checkpointing=False, fsdp_config={"activation_checkpointing": True}),
    ),
    case("config.foreign_missing", _t(deepspeed="none.json"), _t(deepspeed={"bf16": {}}), starting=True),
    case("host.memlock", {}, {}, IB, good_facts=replace(IB, memlock_unlimited=True), severity=WARNING),
    case("host.memlock", {}, {}, IB, good_facts=replace(IB, num_nodes=1), severity=WARNING),
    case("host.memlock", {}, {}, IB, good_facts=replace(IB, infiniband=False), severity=WARNING),
    case(
        "host.nofile",
        {},
        {},
        Facts(max_open_files=1024, world_size=512),
        good_facts=Facts(max_open_files=1024, world_size=256),
        severity=WARNING,
    ),
    case(
        "host.nofile",
        {},
        {"launch.nnodes": 2, "launch.node_rank": 1},
        Facts(max_open_files=1024, world_size=512),
        severity=WARNING,
    ),
    case(
        "host.ifname",
        {},
        {},
        Facts(nccl_socket_ifname="ib", interfaces=frozenset({"eth0"})),
        good_facts=Facts(nccl_socket_ifname="eth", interfaces=frozenset({"eth0"})),
    ),
    case(
        "host.slurm_tasks",
        {},
        {},
        Facts(launcher="torchrun", inside_srun=True, slurm_ntasks_per_node=4),
        good_facts=Facts(launcher="torchrun", inside_srun=True, slurm_ntasks_per_node=1),
    ),
    *(
        case(
            "host.slurm_idle",
            {},
            {"launch.nproc": 1} if good == have else {},
            Facts(outside_srun=have, world_size=world, num_nodes=1),
            good_facts=Facts(outside_srun=good, world_size=world, num_nodes=nodes),
            severity=WARNING,
        )
        for have, world, good, nodes in (
            ((2, 2), 1, None, 1),  # in a step
            ((2, 0), 8, (2, 0), 2),  # torchrun on both nodes
            ((2, 16), 8, (1, 1), 1),  # 8 GPUs, one task
            ((1, 2), 1, (1, 2), 1),  # a number of processes was asked for
        )
    ),
]


def make(settings: dict[str, Any]) -> Config:
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        section, name = path.split(".")
        tree.setdefault(section, {})[name] = value
    return Config.model_validate(tree)


def codes(settings: dict[str, Any], facts: Facts, starting: bool) -> dict[str, Severity]:
    from paceline.config.source import YAML, Source

    provenance = {path: Source(YAML, "config.yaml", number) for number, path in enumerate(settings, 1)}
    return {
        d.code: d.severity for d in check(make(settings), facts, starting=starting, provenance=provenance)
    }


@pytest.mark.parametrize("rule", CASES, ids=[f"{c.code}-{i}" for i, c in enumerate(CASES)])
def test_a_rule_refuses_one_config_and_passes_its_neighbour(rule):
    assert codes(rule.bad, rule.facts, rule.starting).get(rule.code) is rule.severity
    assert rule.code not in codes(rule.good, rule.good_facts or rule.facts, rule.starting)


def test_the_defaults_break_no_rule_and_unknown_facts_are_silent():
    assert check(Config(), Facts()) == []


def test_a_missing_package_of_object_storage_is_refused_before_a_start(monkeypatch):
    def found(**training):
        return codes(_t(**training), Facts(), True).get("save.objects_package")

    assert found(checkpoint_url="s3://bucket/run") is None
    monkeypatch.setattr("paceline.plan.packages.installed", lambda name: None)
    assert found(checkpoint_url="s3://bucket/run") is Severity.ERROR
    assert found(resume_from_checkpoint="s3://bucket/run") is Severity.ERROR
    assert found(resume_from_checkpoint="auto") is None


def test_every_code_a_rule_names_has_a_case_and_an_explanation():
    tested = {c.code for c in CASES}
    named = {code for rule in RULES for code in re.findall(r"[a-z]+\.[a-z0-9_]+", rule.__doc__ or "")}
    assert named - tested == set()
    assert named - set(all_codes()) == set()


def test_a_finding_names_the_line_and_what_to_write(refuse):
    error = refuse("training:\n  load_best_model_at_end: true\n  eval_strategy: epoch\n")
    (found,) = error.diagnostics
    assert found.code == "save.best_strategy"
    assert re.search(r"config\.yaml:2 and .*config\.yaml:3$", found.where)
    assert "save_strategy" in found.hint


@pytest.mark.parametrize(
    ("key", "off"),
    [
        ("data.validation_split", "null"),
        ("training.eval_steps", "eval_strategy: no"),
        ("training.save_steps", "save_strategy: no"),
        ("training.save_total_limit", "null"),
        ("training.save_keep_every", "remove it"),
        ("training.max_steps", "-1"),
        *((f"training.{name}", "") for name in ("warmup_steps", "max_grad_norm", "weight_decay")),
    ],
)
def test_0_is_off_or_its_refusal_says_what_is(key: str, off: str) -> None:
    """Transformers, TRL, LLaMA-Factory and axolotl take 0 for "off" there."""
    base = {"training.eval_strategy": "steps", "training.save_total_limit": 3, "data.eval": "b.jsonl"}
    if key == "data.validation_split":
        base = {}
    found = check(make({**base, key: 0}), Facts())
    refused = [d for d in found if d.severity is Severity.ERROR and key.partition(".")[2] in d.found]
    assert [off in d.hint for d in refused] == ([True] if off else [])


def test_a_missing_model_is_the_one_of_the_adapter(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    lora = {"lora.adapter_name_or_path": str(tmp_path)}
    (found,) = [d for d in check(make(lora), Facts(), starting=True) if d.code == "model.missing"]
    assert "name_or_path: org/base" in found.hint and str(tmp_path) in found.hint
