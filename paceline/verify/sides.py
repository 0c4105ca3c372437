"""The two runs of ``paceline verify``: the user's config, shrunk, under the strategy and under a reference.

Also the tolerances of the comparison.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.json_types import Json, JsonObject, as_object, inner_object
from paceline.plan.features.freezing import Freezing
from paceline.plan.model.parameter_list import parameters_of
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shrink import shrunk
from paceline.plan.plan import Plan
from paceline.plan.strategies.replicated import DDP
from paceline.plan.strategies.spec import strategy_spec

LEAST_LEARNING_RATE = 1e-3  # a loss that hardly changes would hide errors
LONGEST_ROW = 128  # tokens
ROWS_A_SET = 256  # enough for the steps, quick to prepare
CUTS = ((8, 1), (4, 2), (2, 4))  # (micro-batch, accumulation) of one global batch
_PRECISION_WORDS = {"float64": "no", "float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Tolerance:
    """The largest differences that the precision explains.

    loss       absolute
    grad_norm  relative
    parameter  norm of the difference over that of the reference's parameter (gradients: of all gradients)
    """

    loss: float
    grad_norm: float
    parameter: float


# Sums in another order differ by the unit roundoff times the root of their length; AdamW's 1 / sqrt(v)
# passes that to the parameters undamped. Losses: what strategies must meet; the others were measured over all
# strategies on learnable data.
TOLERANCES = {
    "float64": Tolerance(1e-10, 1e-10, 1e-10),
    "float32": Tolerance(2e-6, 2e-5, 2e-5),
    "bfloat16": Tolerance(5e-3, 5e-2, 2e-2),
    "float16": Tolerance(5e-3, 5e-2, 2e-2),
}


@dataclass(frozen=True)
class VerifiedRun:
    """One run: its name, its config as JSON, its number of processes."""

    name: str
    config: JsonObject
    nproc: int

    @property
    def output_dir(self) -> str:
        """The run directory."""
        return str(as_object(self.config["training"])["output_dir"])


def runs_to_compare(
    plan: Plan, model_config: Mapping[str, Json], *, steps: int, against: str, folder: str
) -> tuple[VerifiedRun, VerifiedRun]:
    """Return (the strategy to verify, the reference) for ``steps`` steps, both writing under ``folder``."""
    base = _small(plan, model_config, steps)
    requested = copy.deepcopy(base)
    reference, ranks = _reference(base, plan, against)
    inner_object(requested, "training").update(
        distributed_strategy=plan.strategy, output_dir=f"{folder}/{_word(plan.strategy)}"
    )
    inner_object(reference, "training")["output_dir"] = f"{folder}/reference-{against}"
    inner_object(requested, "launch")["nproc"] = plan.world_size
    inner_object(reference, "launch")["nproc"] = ranks
    return VerifiedRun(_word(plan.strategy), requested, plan.world_size), VerifiedRun(
        against, reference, ranks
    )


def gradient_checks(requested: VerifiedRun, folder: str) -> list[VerifiedRun]:
    """Return runs of one step on the same global batch, split in three ways, whose gradients must be equal.

    8 rows per rank, without clipping.
    """
    runs = []
    for micro, accumulation in CUTS:
        config = copy.deepcopy(requested.config)
        training = inner_object(config, "training")
        training |= {
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "max_steps": 1,
            "max_grad_norm": 0.0,
            "optim": "adamw_torch",
            "weight_decay": 0.0,
            "output_dir": f"{folder}/probe-{micro}x{accumulation}",
        }
        runs.append(VerifiedRun(f"{micro}×{accumulation}", config, requested.nproc))
    return runs


def reference_for(plan: Plan) -> str:
    """Return the reference: ``ddp`` over the data-parallel ranks; ``single`` if there is only one, or if
    ``ddp`` itself is to be verified.
    """
    replicated = plan.mesh.data_parallel_size > 1 and plan.strategy != DDP.name
    return DDP.name if replicated else DDP.alone


def _small(plan: Plan, model_config: Mapping[str, Json], steps: int) -> JsonObject:
    """Return the shrunk config that both runs share."""
    user, config = plan.config, plan.config.to_json()
    model, data, training = (inner_object(config, name) for name in ("model", "data", "training"))
    model["tokenizer"] = user.model.tokenizer or user.model.name_or_path
    stages = max(1, plan.mesh.pp) * plan.engine.stages_a_rank
    divisor = max(2, plan.mesh.tp, plan.mesh.cp)
    model |= {
        "name_or_path": None,
        "revision": None,
        "config": shrunk(model_config, layers=max(2, stages), kv_heads=divisor),
    }
    rows = [
        dataset.model_copy(update={"max_rows": min(dataset.max_rows or ROWS_A_SET, ROWS_A_SET)})
        for dataset in user.data.train
    ]
    data |= {
        "max_length": min(user.data.max_length, LONGEST_ROW),
        "train": [dataset.model_dump(mode="json") for dataset in rows],
        "eval": None,
        "validation_split": None,
    }
    accumulation = user.training.gradient_accumulation_steps
    training |= {
        "max_steps": steps,
        "learning_rate": max(user.training.learning_rate, LEAST_LEARNING_RATE),
        "lr_scheduler_type": "constant",
        "lr_scheduler_kwargs": {},
        "warmup_steps": 0,
        "per_device_train_batch_size": min(user.training.per_device_train_batch_size, 2),
        "gradient_accumulation_steps": accumulation if plan.mesh.pp > 1 else min(accumulation, 4),
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": None,
        "eval_strategy": "no",
        "eval_on_start": False,
        "load_best_model_at_end": False,
        "early_stopping_patience": None,
        "report_to": ["none"],
        "logging_steps": 1,
        "resume_from_checkpoint": None,
        "checkpoint_url": None,
        "overwrite_output_dir": True,
        "mixed_precision": _PRECISION_WORDS[plan.precision.compute],
        "dataloader_drop_last": False,
    }
    small = parameters_of(shape_from_config(as_object(model["config"])))
    freezing = Freezing.configured(user.training).within(p.name for p in small)
    training |= {"freeze": list(freezing.freeze), "unfreeze": list(freezing.unfreeze)}
    if user.lora:
        config["lora"] = {k: 0.0 if "dropout" in k else v for k, v in inner_object(config, "lora").items()}
    config["launch"] = {"nnodes": 1}
    return config


def _reference(base: JsonObject, plan: Plan, against: str) -> tuple[JsonObject, int]:
    """Return the same rows per step without the strategy, on one process or one per data-parallel rank."""
    config = copy.deepcopy(base)
    ranks = 1 if strategy_spec(against).one_process else plan.mesh.data_parallel_size
    training = inner_object(config, "training")
    steps = training["gradient_accumulation_steps"]
    assert isinstance(steps, int)
    training |= {
        "distributed_strategy": against,
        "gradient_accumulation_steps": steps * (plan.mesh.data_parallel_size // ranks),
        "parallelism": None,
        "fsdp": None,
        "fsdp_config": None,
        "deepspeed": None,
    }
    training |= {"distributed": None, "strategy_options": {}}
    return config, ranks


def _word(strategy: str) -> str:
    return strategy.replace(":", ".").replace("/", ".")
