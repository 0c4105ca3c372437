"""``training:`` part 2 — optimisation, loading, evaluation, saving, logging."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.registries.evaluation_metrics import ANSWER_METRICS, METRIC_GROUPS
from paceline.config.registries.optimizers import BUILT, KNOWN
from paceline.config.registries.trackers import ALL, NONE, TRACKERS
from paceline.config.sections.extensions import own_name
from paceline.config.sections.lora import to_targets
from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    Mapping,
    OptBool,
    OptFloat,
    OptInt,
    OptPath,
    OptText,
    Section,
    Word,
    misfit,
    to_int,
    to_path,
    to_texts,
)
from paceline.core.json_types import Json

SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
    "warmup_lr",
    "warmup_decay_lr",
    "warmup_cosine_lr",
    "one_cycle",
    "lr_range_test",
)


def to_resume(value: Json) -> Json:
    """Convert ``true`` to ``latest``, and ``false`` and the empty text to None (no resume)."""
    if isinstance(value, bool):
        return "latest" if value else None
    if isinstance(value, str):
        text = value.strip()
        return {"": None, "true": "latest", "false": None, "none": None}.get(text.lower(), to_path(text))
    return value


def to_trackers(value: Json) -> Json:
    """Convert ``none``, ``all`` or names of trackers to a tuple of names."""
    names = () if value is None or value is False else to_texts(value)
    names = tuple(own_name("trackers", (NONE, ALL, *TRACKERS))(name) for name in names)
    return () if names == (NONE,) else names


def to_metrics(value: Json) -> Json:
    """Convert names of metrics of answers to a tuple of names, each once."""
    names = () if value is None else to_texts(value)
    return tuple(
        dict.fromkeys(own_name("metrics", (*ANSWER_METRICS, *METRIC_GROUPS))(name) for name in names)
    )


def every(interval: float, total_steps: int) -> int:
    """Convert an interval to steps; below 1 it is a fraction of the run, rounded up as TrainerState does."""
    return max(1, int(interval) if interval >= 1 else math.ceil(total_steps * interval))


WARN, SKIP, ROLLBACK = "warn", "skip", "rollback"  # of on_spike
AUTO_RESUME = "auto"  # of resume_from_checkpoint: the newest checkpoint, if there is one
MOST_STEPS = 100  # one trace may take hundreds of MB


def to_numbers(value: Json) -> Json:
    """Convert ``3``, ``[3, 7]``, ``"3-5,10"`` or a list of these to sorted numbers."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    numbers: set[int] = set()
    for item in items:
        first, dash, last = str(item).strip().partition("-")
        begin = to_int(first)
        end = to_int(last) if dash and first else begin
        if not 0 <= end - begin < MOST_STEPS:
            raise misfit(f"must be numbers or ranges of at most {MOST_STEPS}, like [3, 10-12]")
        numbers.update(range(begin, end + 1))
    return sorted(numbers)


def to_ranks(value: Json) -> Json:
    """Convert ``all`` to an empty tuple, which means every rank; other values as ``to_numbers``."""
    return () if value == "all" else to_numbers(value)


class Profile(Section):
    """Profiles of single steps."""

    steps: Annotated[tuple[int, ...], BeforeValidator(to_numbers)] = Field(
        min_length=1,
        max_length=MOST_STEPS,
        description="Steps to record, counted from 1 as in the log: a number, a list, or ranges like 10-12.",
    )
    ranks: Annotated[tuple[int, ...], BeforeValidator(to_ranks)] = Field(
        default=(0,), description="Ranks that record: numbers, ranges, or all."
    )
    memory: Bool = Field(
        default=True,
        description="Record what each kind of layer allocates, and on GPUs the allocator's blocks.",
    )


class OptimisationFields(Section):
    """Steps, learning rate, optimizer, seeds."""

    num_train_epochs: Float = Field(
        default=3.0, gt=0, le=1e6, description="Epochs; max_steps takes precedence if it is set."
    )
    max_steps: Int = Field(default=-1, description="Optimizer steps; -1: derived from num_train_epochs.")
    learning_rate: Float = Field(default=5e-5, ge=0, description="Peak learning rate.")
    weight_decay: Float = Field(
        default=0.0, ge=0, description="Decoupled weight decay; biases and norms are excluded."
    )
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1, description="Adam's β₁.")
    adam_beta2: Float = Field(default=0.999, ge=0, lt=1, description="Adam's β₂.")
    adam_epsilon: Float = Field(default=1e-8, ge=0, description="Adam's epsilon.")
    max_grad_norm: Float = Field(
        default=1.0, ge=0, description="Clip gradients to this global norm; 0: no clipping."
    )
    on_spike: Annotated[str, Word(WARN, SKIP, ROLLBACK)] = Field(
        default=WARN,
        description=(
            "What a spike of the loss or of the gradient norm does: warn; skip its step, on all ranks; or"
            " rollback to the last checkpoint, and leave its rows out."
        ),
    )
    spike_window: Int = Field(
        default=128, ge=4, le=4096, description="Steps before it that a spike is compared with."
    )
    spike_sigma_factor: Float = Field(
        default=6.0,
        gt=0,
        description="Robust standard deviations above the median of those steps from which on a step is one.",
    )
    disable_dropout: OptBool = Field(
        default=None,
        description=(
            "Switch off the model's and the adapters' dropout. When empty: true for reward models, DPO, KTO,"
            " CPO, SimPO and ORPO, as in TRL; false otherwise."
        ),
    )
    optim: Annotated[str, Word(*BUILT, known=KNOWN)] = Field(
        default="adamw_torch_fused",
        description="Optimizer by its Transformers name; unsupported ones are refused with an alternative.",
    )
    optim_args: OptText = Field(
        default=None, description="Extra optimizer arguments as `name=value,name=value`."
    )
    optim_target_modules: Annotated[tuple[str, ...], BeforeValidator(to_targets)] = Field(
        default=(),
        description=(
            "Modules whose matrices `galore_adamw` and `apollo_adamw` project: parts of their names, or"
            " patterns for full names; every linear layer of the decoder when empty, or with all-linear."
        ),
    )
    lr_scheduler_type: Annotated[str, Word(*SCHEDULES)] = Field(
        default="linear",
        description=(
            "Learning-rate schedule by its Transformers name, or one of DeepSpeed's: warmup_lr,"
            " warmup_decay_lr, warmup_cosine_lr, one_cycle, lr_range_test."
        ),
    )
    lr_scheduler_kwargs: Mapping = Field(
        default={}, description="Options of the schedule, e.g. `{num_cycles: 2}` or `{min_lr: 1e-6}`."
    )
    warmup_steps: Float = Field(
        default=0.0,
        ge=0,
        description="Warm-up: a number of steps if 1 or more, a fraction of all steps if below 1.",
    )
    seed: Int = Field(default=42, ge=0, description="Random seed.")
    data_seed: OptInt = Field(default=None, ge=0, description="Seed of the data order; seed when empty.")


class LoadingFields(Section):
    """Data loading."""

    dataloader_num_workers: Int = Field(
        default=0,
        ge=0,
        description=(
            "Threads that prepare the batches of the next steps and evaluations, without "
            "changing their order; 0: none."
        ),
    )
    dataloader_pin_memory: Bool = Field(
        default=True, description="Copy batches to CUDA from pinned memory; no effect on a CPU."
    )
    dataloader_drop_last: Bool = Field(
        default=False,
        description="Drop the last partial step of an epoch; otherwise it is padded with rows of weight 0.",
    )
    dataloader_prefetch_factor: OptInt = Field(
        default=None, ge=1, description="Steps whose batches each loading thread keeps ready; 2 when empty."
    )


class EvaluationFields(Section):
    """When to evaluate, and which checkpoint is best."""

    eval_strategy: Annotated[str, Word("no", "steps", "epoch", false="no")] = Field(
        default="no", description="When to evaluate."
    )
    eval_steps: OptFloat = Field(
        default=None,
        description=(
            "Steps between evaluations (a fraction of all steps if below 1); logging_steps when empty."
        ),
    )
    eval_on_start: Bool = Field(default=False, description="Evaluate before the first step.")
    eval_generate: Bool = Field(
        default=False,
        description=(
            "At each evaluation also answer the evaluation rows, as `generation:` says, and compare the "
            "answers with the rows' own by eval_metrics."
        ),
    )
    eval_metrics: Annotated[tuple[str, ...], BeforeValidator(to_metrics)] = Field(
        default=("exact_match",),
        description=(
            "Metrics of the answers of eval_generate: exact_match, numeric, f1, rouge, bleu, math_verify, or"
            " your own as module:function of (answer, expected)."
        ),
    )
    eval_generate_rows: OptInt = Field(
        default=None, ge=1, description="Rows that eval_generate answers, the first ones; all when empty."
    )
    load_best_model_at_end: Bool = Field(
        default=False, description="Use the best checkpoint as the result; it is never deleted."
    )
    metric_for_best_model: OptText = Field(
        default=None, description="Metric that selects the best checkpoint; loss when empty."
    )
    greater_is_better: OptBool = Field(
        default=None,
        description="Whether a greater metric is better; when empty false for losses, else true.",
    )
    early_stopping_patience: OptInt = Field(
        default=None, ge=1, description="Stop after this many evaluations without improvement."
    )
    early_stopping_threshold: Float = Field(
        default=0.0, ge=0, description="Smallest improvement that counts."
    )


class SavingFields(Section):
    """Run directory, saving and resuming."""

    output_dir: OptPath = Field(
        default=None,
        description="Run directory; outputs/<experiment_name or name of the config file> when empty.",
    )
    experiment_name: OptPath = Field(
        default=None,
        description="Name of the run, and of its folder under outputs/ when output_dir is empty.",
    )
    output_access: Annotated[str, Word("private", "group", "umask")] = Field(
        default="private",
        description=(
            "Who may read the files of a run and its prepared data: this user (and the group, "
            "if the parent folder has the setgid bit), the group, or as the umask allows."
        ),
    )
    overwrite_output_dir: Bool = Field(
        default=False, description="Start a new run in a directory that contains another run."
    )
    resume_from_checkpoint: Annotated[str | None, BeforeValidator(to_resume)] = Field(
        default=None,
        description=(
            "latest (or true): resume, refuse if there is no checkpoint; auto: resume if "
            "there is one; or the path or URL of a checkpoint."
        ),
    )
    save_strategy: Annotated[str, Word("no", "steps", "epoch", "best", false="no")] = Field(
        default="steps", description="When to save; unless it is no, the end is always saved."
    )
    save_steps: Float = Field(
        default=500.0, description="Steps between checkpoints (a fraction of all steps if below 1)."
    )
    save_total_limit: OptInt = Field(
        default=None,
        description=(
            "Number of checkpoints to keep, deleting the oldest; all when empty. The best, and the last one"
            " that was verified, stay besides."
        ),
    )
    save_keep_every: OptInt = Field(
        default=None,
        description="With save_total_limit: keep each checkpoint whose step is a multiple of this, too.",
    )
    checkpoint_url: OptText = Field(
        default=None,
        description=(
            "Object storage that gets each checkpoint too, beside training: s3://bucket/folder, gs://, az://"
            " or file:///folder; a start brings its newest one down if the run directory has none so new."
        ),
    )
    upload_timeout: OptFloat = Field(
        default=None,
        gt=0,
        description=(
            "Seconds, counted from a stop (SIGTERM, Ctrl-C), for which the run waits for its upload to"
            " checkpoint_url; below the time after which the scheduler kills. 25 when empty."
        ),
    )
    save_async: Bool = Field(
        default=False,
        description=(
            "Copy what is saved into host memory, and hash and write it beside training; where the "
            "copy has no room, saves are synchronous, which the plan says."
        ),
    )


class LoggingFields(Section):
    """Logging and trackers."""

    logging_steps: Float = Field(
        default=10.0,
        description=(
            "Steps between console lines and tracker points (a fraction of all steps if below "
            "1); events record every step."
        ),
    )
    logging_first_step: Bool = Field(default=False, description="Log step 1 too.")
    report_to: Annotated[tuple[str, ...], BeforeValidator(to_trackers)] = Field(
        default=("tensorboard",),
        description=(
            "Trackers: none, all (that are installed), tensorboard, wandb, mlflow, swanlab, trackio, or your"
            " own as module:Class. Each works beside training, which waits for none."
        ),
    )
    project: OptText = Field(
        default=None,
        description=(
            "Project of the run in trackers (MLflow: experiment); when empty the tracker's own variable"
            " (WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME, SWANLAB_PROJ_NAME, TRACKIO_PROJECT), else paceline."
        ),
    )
    run_name: OptText = Field(
        default=None, description="Name of the run in trackers; experiment_name when empty."
    )
    profile: Profile | None = Field(
        default=None, description="Record single steps: what takes the time, and the memory."
    )
    log_level: Annotated[str, Word("debug", "info", "warning", "error", "critical", "passive", "detail")] = (
        Field(
            default="info",
            description=(
                "Least severe level on the console and in logs/. Steps, evaluations and notes are "
                "info (passive is the same); debug prints a line for every step. What ends a run "
                "is always written, and events record everything."
            ),
        )
    )
