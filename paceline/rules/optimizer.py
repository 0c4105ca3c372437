"""Rules for the optimizer, the schedule and ``metric_for_best_model``: supported names and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.config.registries.evaluation_metrics import evaluation_metrics, greater_is_better
from paceline.config.registries.lr_schedules import NEEDED, OPTIONS, STATEFUL, unmet
from paceline.config.registries.optimizers import BUILT, not_built, optim_args_problems, runs_on, supports
from paceline.config.registries.options import misfits
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

_OPTIM, _ARGS, _TARGETS = "training.optim", "training.optim_args", "training.optim_target_modules"
_CONSTANT = "constant"  # the schedule that is none
_SCHEDULE, _KWARGS = "training.lr_scheduler_type", "training.lr_scheduler_kwargs"


def optimizer(c: Context) -> Iterator[Diagnostic]:
    """train.optimizer"""
    name = c.training.optim
    if name not in BUILT:
        why, instead = not_built(name)
        yield c.at(codes.TRAIN_OPTIMIZER(name=name, why=why, instead=instead), _OPTIM)


def optimizer_machine(c: Context) -> Iterator[Diagnostic]:
    """train.optimizer_device, train.optimizer_float64"""
    name = c.training.optim
    row, device = BUILT.get(name), c.facts.device
    if row is None:
        return
    if not runs_on(name, device):
        split = c.strategy is None or supports(row.elsewhere, c.strategy.state_split)
        yield c.at(
            codes.TRAIN_OPTIMIZER_DEVICE(
                name=name,
                devices=" or ".join(row.devices),
                device=device,
                elsewhere=row.elsewhere if split else "adamw_torch",
            ),
            _OPTIM,
        )
    if not row.float64 and c.config.model.dtype == "float64":
        yield c.at(codes.TRAIN_OPTIMIZER_FLOAT64(name=name), "model.dtype", _OPTIM)


def schedule_free(c: Context) -> Iterator[Diagnostic]:
    """train.schedule_free"""
    if c.training.optim not in BUILT or not BUILT[c.training.optim].averaged:
        return
    if c.training.lr_scheduler_type != _CONSTANT:
        yield c.problem(
            codes.TRAIN_SCHEDULE_FREE,
            f"{c.training.optim} needs a constant learning rate, but lr_scheduler_type is"
            f" {c.training.lr_scheduler_type}",
            _SCHEDULE,
            _OPTIM,
            hint=f"set lr_scheduler_type: {_CONSTANT}",
        )
    if c.training.warmup_steps and (
        "warmup_steps" not in BUILT[c.training.optim].takes or c.training.warmup_steps < 1
    ):
        takes = "warmup_steps" in BUILT[c.training.optim].takes
        yield c.problem(
            codes.TRAIN_SCHEDULE_FREE,
            f"{c.training.optim}"
            f" {'needs its warm-up as a number of steps' if takes else 'has a built-in warm-up'}",
            "training.warmup_steps",
            _OPTIM,
            hint="set warmup_steps: 100" if takes else "set warmup_steps: 0",
        )
    if "betas" in BUILT[c.training.optim].takes and c.training.adam_beta1 == 0:
        yield c.problem(
            codes.TRAIN_SCHEDULE_FREE,
            f"{c.training.optim} weights its average by 1 / adam_beta1, and adam_beta1 is 0",
            "training.adam_beta1",
            _OPTIM,
            hint="set adam_beta1: 0.9",
        )


def optimizer_options(c: Context) -> Iterator[Diagnostic]:
    """train.optim_args"""
    if c.training.optim in BUILT:
        yield from (
            c.at(problem, _ARGS) for problem in optim_args_problems(c.training.optim, c.training.optim_args)
        )


def projected_modules(c: Context) -> Iterator[Diagnostic]:
    """train.optim_target_modules"""
    if c.training.optim in BUILT and BUILT[c.training.optim].projects and c.config.lora is not None:
        yield c.problem(
            codes.TRAIN_OPTIM_TARGET_MODULES,
            f"{c.training.optim} projects the gradients of whole weights; LoRA's matrices are of low rank"
            " already",
            _OPTIM,
            "lora",
            hint="remove lora, or set optim: adamw_torch_fused",
        )
    if (
        not c.training.optim_target_modules
        or c.training.optim not in BUILT
        or BUILT[c.training.optim].projects
    ):
        return
    yield c.problem(
        codes.TRAIN_OPTIM_TARGET_MODULES,
        f"optim_target_modules is for optimizers that project gradients, and {c.training.optim} projects"
        " none",
        _TARGETS,
        _OPTIM,
        hint="set optim: galore_adamw, or remove optim_target_modules",
    )


def schedule(c: Context) -> Iterator[Diagnostic]:
    """train.schedule"""
    name = c.training.lr_scheduler_type
    if name in STATEFUL:
        yield c.at(codes.TRAIN_SCHEDULE(name=name), _SCHEDULE)


def schedule_options(c: Context) -> Iterator[Diagnostic]:
    """train.schedule_options"""
    name, options = c.training.lr_scheduler_type, c.training.lr_scheduler_kwargs
    if name not in OPTIONS:
        return
    wrong = list(misfits(options, OPTIONS[name]))
    for fault, found, remedy in wrong:
        yield c.problem(
            codes.TRAIN_SCHEDULE_OPTIONS, f"the schedule {name} {fault}", _KWARGS, found=found, hint=remedy
        )
    lacks = "" if wrong else unmet(name, options, c.training.learning_rate, c.training.max_steps)
    if lacks:
        found = ", ".join(f"{key}: {value}" for key, value in options.items()) or "none"
        yield c.problem(
            codes.TRAIN_SCHEDULE_OPTIONS,
            f"the schedule {name} {lacks}",
            _KWARGS,
            _SCHEDULE,
            found=found,
            hint=_instead(name, options, c.training.max_steps),
        )


def _instead(name: str, options: Mapping[str, Json], max_steps: int) -> str:
    """Return the remedy for a schedule's options: the missing one, or a decay short enough for the run."""
    extra = [key for key in NEEDED.get(name, ()) if key in options][1:]
    fitting = {key: value for key, value in options.items() if key not in extra}
    if "num_decay_steps" in options and max_steps > 0:
        fitting["num_decay_steps"] = max(1, max_steps // 10)
    lacks = [key for key in NEEDED.get(name, ()) if key not in options][: 0 if fitting != options else 1]
    written = [*(f"{key}: {value}" for key, value in fitting.items()), *(f"{key}: …" for key in lacks)]
    return f"lr_scheduler_kwargs: {{{', '.join(written)}}}"


_METRIC, _GREATER = "training.metric_for_best_model", "training.greater_is_better"


def best_metric(c: Context) -> Iterator[Diagnostic]:
    """train.best_metric, train.best_is_worst"""
    if c.training.metric_for_best_model is None and c.training.greater_is_better is None:
        return  # the algorithm's first metric, and its way
    requested = c.training.metric_for_best_model or "loss"
    rewards = c.training.rollout.rewards if c.algorithm.on_policy and c.training.rollout is not None else ()
    names = evaluation_metrics(
        c.training.algorithm,
        [reward.name for reward in rewards],
        c.training.eval_metrics if c.training.eval_generate else (),
    )
    full = requested if requested.startswith("eval_") else f"eval_{requested}"
    if full not in names:
        if c.training.metric_for_best_model is None:
            return  # the algorithm's first metric
        yield c.at(codes.TRAIN_BEST_METRIC(algorithm=c.training.algorithm, names=", ".join(names)), _METRIC)
        return
    greater, configured = greater_is_better(full), c.training.greater_is_better
    if None not in (greater, configured) and greater != configured:
        yield c.at(
            codes.TRAIN_BEST_IS_WORST(
                metric=full, way=("smaller", "greater")[bool(greater)], better=str(greater).lower()
            ),
            _GREATER,
            _METRIC,
        )


_SMALLEST = 1e-9  # a smaller update does not change a float32 weight of 0.02
_RATE, _CLIP = "training.learning_rate", "training.max_grad_norm"


def rate(c: Context) -> Iterator[Diagnostic]:
    """train.learning_rate, train.max_grad_norm"""
    largest = BUILT[c.training.optim].largest_rate if c.training.optim in BUILT else None
    fault = ""
    if largest is not None and c.training.learning_rate > largest:
        fault = (
            f"a learning rate of {c.training.learning_rate:g} with {c.training.optim} makes the weights"
            " diverge within a"
            " few steps"
        )
    elif c.training.learning_rate < _SMALLEST:
        fault = f"with a learning rate of {c.training.learning_rate:g} the weights hardly change"
    if fault:
        yield c.problem(
            codes.TRAIN_LEARNING_RATE,
            fault,
            _RATE,
            _OPTIM,
            hint="learning_rate: 2e-5 (all weights) or 1e-4 (adapters) are usual",
            severity=Severity.WARNING,
        )
    if 0 < c.training.max_grad_norm < _SMALLEST:
        yield c.at(codes.TRAIN_MAX_GRAD_NORM(max_grad_norm=c.training.max_grad_norm), _CLIP)


def decay(c: Context) -> Iterator[Diagnostic]:
    """train.weight_decay, train.adam_epsilon"""
    if c.training.learning_rate * c.training.weight_decay >= 1:
        yield c.at(
            codes.TRAIN_WEIGHT_DECAY(fraction=c.training.weight_decay * c.training.learning_rate),
            "training.weight_decay",
        )
    if c.training.adam_epsilon >= 1:
        yield c.at(codes.TRAIN_ADAM_EPSILON(adam_epsilon=c.training.adam_epsilon), "training.adam_epsilon")


OPTIMISATION_RULES: tuple[Rule, ...] = (
    rate,
    decay,
    optimizer,
    optimizer_machine,
    schedule_free,
    optimizer_options,
    projected_modules,
    schedule,
    schedule_options,
    best_metric,
)
