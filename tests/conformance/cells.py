"""The support matrix's cells: every strategy with what is trained and in which precision, as configs of a
few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 8
STEPS, SAVED = 10, 5
MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

MIXTURE = {
    **MODEL,
    "model_type": "qwen3_moe",
    "head_dim": 8,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}

#: As the 176 B one is laid out: heads' queries, keys and values interleaved, ALiBi, tied embeddings.
BLOOM = {
    "model_type": "bloom",
    "hidden_size": 32,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 320,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


@dataclass(frozen=True)
class Variant:
    """A strategy as a user asks for it: keys under ``training``, processes, how many of them see different
    rows, how rows are cut.
    """

    name: str
    training: Mapping[str, Any]
    nproc: int = 2
    data_parallel: int = 2
    micro: int = 1
    needs: str = ""  # what the machine must have beyond the packages: libaio
    native: bool = True

    @property
    def accumulation(self) -> int:
        return GLOBAL_BATCH // (self.micro * self.data_parallel)


def fsdp_variant(name: str, nproc: int = 2, **training: Any) -> Variant:
    return Variant(name, {"distributed_strategy": "fsdp", **training}, nproc, nproc)


def _mesh(name: str, nproc: int, data_parallel: int, strategy: str = "fsdp", **sizes: Any) -> Variant:
    return Variant(name, {"distributed_strategy": strategy, "parallelism": sizes}, nproc, data_parallel)


def zero_cell(name: str, stage: int, data_parallel: int = 2, needs: str = "", **config: Any) -> Variant:
    zero = {"stage": stage, **config.pop("zero", {})}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    training = {"distributed_strategy": "deepspeed", "deepspeed": {"zero_optimization": zero, **config}}
    return Variant(name, training, 2, data_parallel, needs=needs, native=False)


CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "{swap}"}
VARIANTS = (
    Variant("single", {"distributed_strategy": "single"}, 1, 1, 4),
    Variant("data_parallel (one device)", {"distributed_strategy": "data_parallel"}, 1, 1, 4),
    Variant("ddp", {"distributed_strategy": "ddp"}),
    Variant("zero_redundancy", {"distributed_strategy": "zero_redundancy"}),
    fsdp_variant("fsdp full_shard", fsdp="full_shard"),
    fsdp_variant("fsdp shard_grad_op", fsdp="shard_grad_op"),
    fsdp_variant("fsdp no_shard", fsdp="no_shard"),
    fsdp_variant("fsdp full_shard, CPU offload", fsdp="full_shard offload"),
    _mesh("fsdp hybrid_shard (2 × 2)", 4, 4, dp_replicate_size=2, dp_shard_size=2),
    _mesh("tp", 2, 1, tp_size=2),
    _mesh("tp, sequence parallel", 2, 1, tp_size=2, sequence_parallel=True),
    _mesh("cp ulysses", 2, 1, cp_size=2, cp_method="ulysses"),
    _mesh("cp all-gather", 2, 1, cp_size=2, cp_method="allgather"),
    _mesh("pipeline 1f1b", 2, 1, "pipeline", pp_size=2, pp_schedule="1f1b"),
    _mesh("pipeline interleaved", 2, 1, "pipeline", pp_size=2, pp_schedule="interleaved"),
    _mesh("pipeline zero_bubble", 2, 1, "pipeline", pp_size=2, pp_schedule="zero_bubble"),
    _mesh("tp × fsdp", 4, 2, tp_size=2, dp_shard_size=2),
    _mesh("pp × fsdp", 4, 2, "pipeline", pp_size=2, dp_shard_size=2),
    _mesh("pp × tp × fsdp", 8, 2, "pipeline", pp_size=2, tp_size=2, dp_shard_size=2),
    zero_cell("ZeRO-1", 1),
    zero_cell("ZeRO-2", 2),
    zero_cell("ZeRO-3", 3),
    zero_cell("ZeRO-3, CPU offload", 3, zero={"offload_optimizer": CPU, "offload_param": CPU}),
    zero_cell(
        "ZeRO-3, NVMe offload", 3, needs="libaio", zero={"offload_optimizer": NVME, "offload_param": NVME}
    ),
    zero_cell("AutoTP + ZeRO-1", 1, data_parallel=1, tensor_parallel={"autotp_size": 2}),
    zero_cell("DeepSpeed Ulysses", 1, data_parallel=1, sequence_parallel_size=2),
    Variant("a user's own (module:Class)", {"distributed_strategy": "own_strategy:EveryRankSteps"}),
)
FINETUNING: dict[str, Mapping[str, Any] | None] = {
    "full": None,
    "LoRA": {"r": 4, "alpha": 8},
    "QLoRA": {"r": 4, "alpha": 8, "quantization_bit": 4},
}
PRECISIONS = {
    "fp32": {"mixed_precision": "no"},
    "bf16": {"mixed_precision": "bf16"},
    "fp64": {"mixed_precision": "no"},
}
# Losses absolute, tensors relative. In bf16 AdamW turns the rounding of a gradient near zero into a whole
# step, most of all for an adapter that starts at zero: there the loss is what is held.
LOSS_TOLERANCE = {"fp64": 1e-10, "fp32": 2e-6, "bf16": 5e-3}
TENSOR_TOLERANCE = {"fp64": 1e-10, "fp32": 2e-5, "bf16": 1e-1}
# A mixture's class computes its router's softmax in float32 whatever its weights are, and BLOOM's that of
# its attention (Transformers 5.23): the last digit of a probability there is 6e-8. GRPO's gradients, which
# cancel, show it (3e-9 in parameters).
ROUTED_TOLERANCE = 1e-8
# The head reads one token, so of the last layer's queries one matters: their bias begins at 0 and moves by
# little (6e-8 apart of 7e-4, all other tensors 1e-5 of theirs; in fp64 below 1e-10).
BIAS_TOLERANCE = 2e-4
LOGIT_TOLERANCE = {"fp64": 1e-6, "fp32": 1e-4, "bf16": 5e-2}  # exports are fp32


# Advantages add up to 0, and so do many gradients: what is left of them is rounding, 1e-9 of some other in
# every engine. At AdamW's eps of 1e-8 each of these becomes a whole step (GRPO, ZeRO-3: gradients equal to
# 1.1e-7 after one step, 186 elements of the embedding with |g| < 8.1e-9 apart by 0.6 of the learning rate,
# parameters by 3.2e-4; under SGD by 2.7e-8). At 1e-5, as PPO is commonly run, they stay where they are.
_ON_POLICY_ADAM = {"adam_epsilon": 1e-5}
# what an algorithm is run with beside the rest, so that its loss moves in few steps
ALGORITHMS: dict[str, Mapping[str, Any]] = {
    "sft": {},
    "reward": {"reward": {"center_rewards_coefficient": 0.01}},
    "dpo": {"dpo": {"beta": 0.5, "rpo_alpha": 0.1}},
    "orpo": {"orpo": {"beta": 0.5}},
    "simpo": {"simpo": {"beta": 2.0, "simpo_gamma": 1.0}},
    "cpo": {"cpo": {"beta": 0.1, "cpo_alpha": 0.1}},
    # a gradient of an adapter that starts at 0 may be rounding alone (moments equal to 9e-8, parameters apart
    # by 3e-5; in fp64 by less than 1e-10): as below
    "kto": {"kto": {"beta": 0.5, "undesirable_weight": 1.5}, "adam_epsilon": 1e-6},
    "grpo": {
        **_ON_POLICY_ADAM,
        "rollout": {
            "rewards": [{"name": "regex", "options": {"pattern": "[a-m]"}}],
            "num_generations": 4,
            "max_completion_length": 8,
        },
        "grpo": {"beta": 0.05, "num_iterations": 2, "loss_type": "grpo"},
    },
}
ALGORITHMS["ppo"] = {
    **_ON_POLICY_ADAM,
    "rollout": {**ALGORITHMS["grpo"]["rollout"], "num_generations": 1},
    "ppo": {
        "num_ppo_epochs": 2,
        "adap_kl_ctrl": True,
        "horizon": 100,
        "target": 0.1,
        "missing_eos_penalty": 0.5,
    },
}
ALGORITHMS["rloo"] = {
    **_ON_POLICY_ADAM,
    "rollout": ALGORITHMS["grpo"]["rollout"],
    # the ratio is of eight tokens together: a narrow clip would take all of the second step away, and its
    # gradient would be rounding
    "rloo": {
        "beta": 0.05,
        "num_iterations": 2,
        "normalize_advantages": True,
        "epsilon": 0.5,
        "epsilon_high": 2.0,
    },
}
ALGORITHMS["reinforce_plus_plus"] = {  # and prompts that are drawn again
    **_ON_POLICY_ADAM,
    "rollout": {**ALGORITHMS["grpo"]["rollout"], "filter_groups": True, "max_redraws": 3},
    "reinforce_plus_plus": {"group_baseline": True, "beta": 0.05, "gamma": 0.9, "num_iterations": 2},
}
ON_POLICY = ("grpo", "ppo", "rloo", "reinforce_plus_plus")


REFERENCE_FREE = ("cpo", "simpo", "orpo")


@dataclass(frozen=True)
class Cell:
    """One box of the matrix."""

    variant: Variant
    finetuning: str = "full"
    precision: str = "fp32"
    algorithm: str = "sft"
    recompute: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        recompute = ", recompute" if self.recompute else ""
        return f"{self.algorithm} · {self.variant.name} · {self.finetuning} · {self.precision}{recompute}"

    @property
    def learns(self) -> str:
        """Its algorithm's name: what stands behind a comma says how it is run."""
        return self.algorithm.partition(",")[0]

    @property
    def tensor_tolerance(self) -> float:
        """How far parameters may be from one process's, relative to the largest."""
        allowed = TENSOR_TOLERANCE[self.precision]
        if self.precision == "fp32" and self.algorithm.endswith((_OF_BERT, _OF_DEBERTA)):
            return BIAS_TOLERANCE
        rounded = (_OF_A_MIXTURE, _OF_BLOOM)
        return max(allowed, ROUTED_TOLERANCE) if self.algorithm.endswith(rounded) else allowed

    def reference(self) -> Cell:
        """The same on one process."""
        return Cell(VARIANTS[0], self.finetuning, self.precision, self.algorithm, self.recompute)

    def config(self, tokenizer: str, data: str, cache: str, output_dir: str) -> dict[str, Any]:
        """The YAML of this cell, as JSON."""
        v = self.variant
        training = {
            **_filled(v.training, swap=f"{output_dir}-swap"),
            **PRECISIONS[self.precision],
            **_filled(ALGORITHMS[self.algorithm], teacher=str(Path(tokenizer).with_name("teacher"))),
            "algorithm": self.learns,
            "output_dir": output_dir,
            "max_steps": STEPS,
            "learning_rate": 1e-3,
            "max_grad_norm": 0.5,
            "per_device_train_batch_size": v.micro,
            "gradient_accumulation_steps": v.accumulation,
            "gradient_checkpointing": self.recompute,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": SAVED,
            "report_to": "none",
            "seed": 7,
            "use_cpu": True,
        }
        config: dict[str, Any] = {
            "model": {
                "config": _MODELS.get(self.algorithm.partition(",")[2], MODEL),
                "tokenizer": tokenizer,
                "dtype": "float64" if self.precision == "fp64" else "float32",
            },
            "data": {"train": data, "max_length": 96, "cache_dir": cache},
            "training": training,
        }
        if self.finetuning == "full":
            training |= _ROUNDING.get(self.algorithm.partition(",")[2], {})
        if FINETUNING[self.finetuning] is not None:
            config["lora"] = dict(FINETUNING[self.finetuning] or {})
        return config


def _filled(training: Mapping[str, Any], **folders: str) -> dict[str, Any]:
    """``{swap}`` becomes a folder beside the run, ``{teacher}`` the teacher's."""

    def fill(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: fill(v) for k, v in value.items()}
        return folders.get(value[1:-1], value) if isinstance(value, str) else value

    return {k: fill(v) for k, v in training.items()}


def matrix() -> list[Cell]:
    """Every cell that the docs' table shows."""
    return [Cell(v, f, p) for v in VARIANTS for f in FINETUNING for p in ("fp32", "bf16")]


# more processes than the matrix has, held in float64 alone
LARGER = (
    Variant("ddp, 4 processes", {"distributed_strategy": "ddp"}, 4, 4),
    Variant("ddp, 8 processes", {"distributed_strategy": "ddp"}, 8, 8),
    Variant("zero_redundancy, 4 processes", {"distributed_strategy": "zero_redundancy"}, 4, 4),
    fsdp_variant("fsdp full_shard, 4 processes", 4, fsdp="full_shard"),
    fsdp_variant("fsdp full_shard, 8 processes", 8, fsdp="full_shard"),
    _mesh("fsdp hybrid_shard (2 × 4)", 8, 8, dp_replicate_size=2, dp_shard_size=4),
    _mesh("cp all-gather, 4 processes", 4, 1, cp_size=4, cp_method="allgather"),
    _mesh("cp × fsdp", 4, 2, cp_size=2, dp_shard_size=2),
    _mesh("pipeline 1f1b, 4 processes", 4, 1, "pipeline", pp_size=4),
)


def exact() -> list[Cell]:
    """Native strategies in float64: what must be equal to 1e-10, and once more with gradient
    checkpointing.
    """
    native = [v for v in (*VARIANTS[1:], *LARGER) if v.native]
    return [Cell(v, "full", "fp64", recompute=r) for v in native for r in (False, True)]


_DATA_PARALLEL = ("single", "ddp", "zero_redundancy", "fsdp full_shard", "ZeRO-1", "ZeRO-2", "ZeRO-3")
_QUANTISED = ("single", "ddp", "fsdp full_shard")


def preferences() -> list[Cell]:
    """What is learnt from preferences: reward models, DPO, KTO and what needs no reference, in fp32 and
    native strategies in fp64 too.
    """
    named = {v.name: v for v in VARIANTS}
    cells = [
        Cell(named[name], finetuning, precision, algorithm)
        for algorithm in ("reward", "dpo", "kto", *REFERENCE_FREE)
        for name in _DATA_PARALLEL
        for finetuning in ("full", "LoRA")
        for precision in ("fp32", "fp64")
        if precision == "fp32" or (named[name].native and name != "single")
    ]
    tp = [
        Cell(named["tp"], "full", precision, name)
        for name in ("dpo", "kto", *REFERENCE_FREE)
        for precision in ("fp32", "fp64")
    ]
    tp += [Cell(named["tp"], "LoRA", precision, "dpo") for precision in ("fp32", "fp64")]
    return [*cells, *tp, *(Cell(named[name], "QLoRA", "fp32", "dpo") for name in _QUANTISED)]


def rollouts() -> list[Cell]:
    """What is learnt from the model's own answers: GRPO, PPO, RLOO and REINFORCE++, in fp32 and native
    strategies in fp64 too; saved in the middle of a rollout.
    """
    named = {v.name: v for v in VARIANTS}
    cells = [
        Cell(named[name], finetuning, precision, algorithm)
        for algorithm in ON_POLICY
        for name in _DATA_PARALLEL
        for finetuning in ("full", "LoRA")
        for precision in ("fp32", "fp64")
        if precision == "fp32" or (named[name].native and name != "single")
    ]
    tp = [Cell(named["tp"], kind, p, "grpo") for kind in ("full", "LoRA") for p in ("fp32", "fp64")]
    return [*cells, *tp]


ALGORITHMS["distillation"] = {
    "distillation": {"teacher_model": "{teacher}", "beta": 0.1, "temperature": 1.5, "alpha": 0.3}
}


_ANSWERED = "distillation, own answers"
ALGORITHMS[_ANSWERED] = {
    "distillation": {
        "teacher_model": "{teacher}",
        "beta": 0.1,
        "alpha": 0.7,
        "lmbda": 0.5,
        "max_completion_length": 8,
    }
}


ALGORITHMS["classification"] = {"classification": {"labels": ["bad", "fair", "good"]}}
# cosines are rounded to 1e-7: divided by 0.05 they would move a loss by the tolerance
ALGORITHMS["embedding"] = {"embedding": {"symmetric": True, "temperature": 0.2}}
ALGORITHMS["reranker"] = {"reranker": {"loss_type": "listwise"}}


def taught() -> list[Cell]:
    """What is learnt from a teacher, labels or documents: in fp32, and native strategies in fp64 too."""
    named = {v.name: v for v in VARIANTS}
    cells = [
        Cell(named[name], finetuning, precision, algorithm)
        for algorithm in ("distillation", "classification")
        for name in _DATA_PARALLEL
        for finetuning in ("full", "LoRA")
        for precision in ("fp32", "fp64")
        if precision == "fp32" or (named[name].native and name != "single")
    ]
    alone = [Cell(named["data_parallel (one device)"], "full", "fp32", "distillation")]
    answered = [
        *(Cell(named[name], "full", "fp32", _ANSWERED) for name in _DATA_PARALLEL),
        *(Cell(named[name], "LoRA", "fp32", _ANSWERED) for name in _QUANTISED[1:]),
        *(Cell(named[name], "full", "fp64", _ANSWERED) for name in _QUANTISED[1:]),
    ]
    # Adapters and float64 are left out: they take the same windows. A reranker's reference does not learn yet
    # what these rows have: in its few steps nothing would be proved.
    joint = [Cell(named[name], "full", "fp32", "embedding") for name in _DATA_PARALLEL]
    return [
        *cells,
        *joint,
        *alone,
        *answered,
        *(Cell(named["cp ulysses"], "full", precision, "distillation") for precision in ("fp32", "fp64")),
    ]


_OF_A_MIXTURE = ", mixture of experts"
for _name in ("sft", "dpo", "grpo"):
    ALGORITHMS[_name + _OF_A_MIXTURE] = {**ALGORITHMS[_name], "router_aux_loss_coef": 0.05}


def mixtures() -> list[Cell]:
    """A mixture of experts with its balance loss over each document: under every strategy, by DPO and GRPO
    where ranks see other rows, native strategies in fp64 too.
    """
    named = {v.name: v for v in VARIANTS}
    sft, *others = (name + _OF_A_MIXTURE for name in ("sft", "dpo", "grpo"))
    return [
        *(Cell(v, "full", precision, sft) for v in VARIANTS for precision in ("fp32", "bf16")),
        *(Cell(named[name], "LoRA", "fp32", sft) for name in _DATA_PARALLEL),
        *(Cell(v, "full", "fp64", sft) for v in VARIANTS[1:] if v.native),
        *(
            Cell(named[name], finetuning, "fp32", algorithm)
            for algorithm in others
            for name in _DATA_PARALLEL
            for finetuning in ("full", "LoRA")
        ),
        *(
            Cell(named[name], "full", "fp64", algorithm)
            for algorithm in others
            for name in _DATA_PARALLEL[1:]
            if named[name].native
        ),
    ]


_OF_BLOOM = ", BLOOM"
# the gradient of a key's bias is 0 but for rounding, which AdamW would turn into whole steps
ALGORITHMS["sft" + _OF_BLOOM] = {"adam_epsilon": 1e-5}
_MODELS = {_OF_A_MIXTURE[1:]: MIXTURE, _OF_BLOOM[1:]: BLOOM}
# 384 devices in the layout of the 176 B one: pp 12 × tp 4 × dp 8 (arXiv:2211.05100)
_AS_BLOOM = ("single", "tp", "tp × fsdp", "pp × fsdp", "pp × tp × fsdp")


def blooms() -> list[Cell]:
    """BLOOM in its own layout in small, and in parts of it."""
    named = {v.name: v for v in VARIANTS}
    cells = [
        Cell(named[name], "full", precision, "sft" + _OF_BLOOM)
        for name in _AS_BLOOM
        for precision in ("fp32", "bf16", "fp64")
        if precision != "fp64" or name != "single"
    ]
    return [*cells, *(Cell(named[name], "LoRA", "fp32", "sft" + _OF_BLOOM) for name in _AS_BLOOM[:3])]


_OF_BERT, _OF_DEBERTA, _OF_MODERNBERT = (f", {name}" for name in ("BERT", "DeBERTa", "ModernBERT"))
# so wide that ten steps teach something; masks of dropout would be of each rank's own rows
_DRAWN = {"initializer_range": 0.4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ENCODER = {key: size for key, size in MODEL.items() if key != "num_key_value_heads"}
_BERT = {**_ENCODER, **_DRAWN, "model_type": "bert"}
_MODELS |= {
    _OF_BERT[1:]: _BERT,
    _OF_DEBERTA[1:]: {
        **_BERT,
        "initializer_range": 0.2,
        "model_type": "deberta-v2",
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "pooler_hidden_size": 32,
    },
    _OF_MODERNBERT[1:]: {
        **_ENCODER,
        "model_type": "modernbert",
        "local_attention": 8,
        "classifier_pooling": "mean",
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    },
}
# drawn so wide, gradients of many elements are rounding of others (fp32: parameters apart by 5e-5, in fp64 by
# less than 1e-10)
for _name, _epsilon in ((_OF_BERT, 1e-4), (_OF_DEBERTA, 1e-4), (_OF_MODERNBERT, 1e-5)):
    ALGORITHMS["classification" + _name] = {**ALGORITHMS["classification"], "adam_epsilon": _epsilon}
# a tensor of its own there: what differs of it is rounding over rounding
_ROUNDING: Mapping[str, Mapping[str, Any]] = {_OF_BERT[1:]: {"freeze": ["attention.self.key.bias"]}}
_NO_ENCODERS = ("tp", "cp ulysses", "pipeline 1f1b", "AutoTP + ZeRO-1", "DeepSpeed Ulysses")


def encoders() -> list[Cell]:
    """Encoders as classifiers: BERT in three engines, and where it is refused; DeBERTa, whose documents are
    padded, and ModernBERT, which sees windows, where weights are sharded.
    """
    named, bert = {v.name: v for v in VARIANTS}, "classification" + _OF_BERT
    return [
        *(Cell(named[name], "full", "fp32", bert) for name in ("ddp", "fsdp full_shard", "ZeRO-3")),
        Cell(named["fsdp full_shard"], "LoRA", "fp32", bert),
        Cell(named["fsdp full_shard"], "full", "fp64", bert),
        *(Cell(named[name], "full", "fp32", bert) for name in _NO_ENCODERS),
        Cell(named["ddp"], "QLoRA", "fp32", bert),
        *(
            Cell(named["fsdp full_shard"], "full", "fp32", "classification" + family)
            for family in (_OF_DEBERTA, _OF_MODERNBERT)
        ),
        Cell(named["fsdp full_shard"], "full", "fp64", "classification" + _OF_DEBERTA),
    ]


_EAGER = {"torch_compile": True, "torch_compile_backend": "aot_eager"}  # all of torch.compile but inductor
_KEEP = {"gradient_checkpointing_kwargs": {"keep": ["attention", "matmul"]}}
COMPILED = (
    Variant("ddp, torch_compile", {"distributed_strategy": "ddp", **_EAGER}),
    fsdp_variant("fsdp full_shard, torch_compile", fsdp="full_shard", **_EAGER),
    Variant(
        "tp, torch_compile",
        {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}, **_EAGER},
        data_parallel=1,
    ),
)
KEEPING = (
    Variant("ddp, keep attention and matmul", {"distributed_strategy": "ddp", **_KEEP}),
    fsdp_variant("fsdp full_shard, keep attention and matmul", fsdp="full_shard", **_KEEP),
)


def layers() -> list[Cell]:
    """Decoder layers that are compiled, against uncompiled ones, a rollout's too; and recomputed but for
    what is kept, against recomputed as a whole.
    """
    precisions = ("fp32", "fp64")
    return [
        *(Cell(v, "full", precision) for v in COMPILED for precision in precisions),
        *(Cell(v, "full", precision, recompute=True) for v in KEEPING for precision in precisions),
        *(Cell(v, "full", "fp64", "grpo") for v in COMPILED[:2]),
    ]


PARTS: Mapping[str, Callable[[], list[Cell]]] = {
    "matrix": matrix,
    "exact": exact,
    "preferences": preferences,
    "rollouts": rollouts,
    "taught": taught,
    "mixtures": mixtures,
    "blooms": blooms,
    "encoders": encoders,
    "layers": layers,
}


def every() -> list[Cell]:
    """All cells, in the order of the page."""
    return [cell for part in PARTS.values() for cell in part()]
