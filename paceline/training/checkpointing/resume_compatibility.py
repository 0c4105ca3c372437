"""Check that a resumed run matches the earlier one, and compute the cost of another layout. Imports no
torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod
from pathlib import Path

from paceline.checkpoint.format.manifest import CONVERTED, Manifest
from paceline.config.registries.optimizers import BUILT, StateSplit
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.core.safetensors_header import STORED_DTYPES
from paceline.core.units import human_bytes
from paceline.plan.algorithms.rollout import updates_per_pass
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.explain import GLOBAL_BATCH
from paceline.plan.features.lora import adapted_layers
from paceline.plan.mesh import resplit
from paceline.plan.model.family import Family
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import AdapterSpec, OptimizerSpec, Plan
from paceline.plan.plan_json import from_json, to_json
from paceline.plan.strategies.spec import state_form, strategy_spec, why_unreadable
from paceline.training import codes
from paceline.training.loop.train_state import TrainState

STRATEGY_LABEL = "strategy_label"  # where a checkpoint's state has it
# What a resumed run must not change: the samples and their order.
FIXED = ("data_fingerprint", "global_batch", "seq_len", "packing", "seed")


def keep_global_batch(state: JsonObject, plan: Plan) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan with micro-batch and accumulation recomputed to keep the global batch (contract 4).

    Applies if the number of ranks has changed, now or in an earlier resume; a diagnostic reports it.
    """
    rows, ranks = (
        int(as_number(state.get("global_batch", plan.batch.global_batch))),
        int(as_number(state.get("world_size", plan.world_size))),
    )
    sharing = int(as_number(state.get("data_parallel_size", plan.batch.data_parallel_size)))
    same_ranks = (ranks, sharing) == (plan.world_size, plan.batch.data_parallel_size)
    # With other rows a step on the same ranks, that run had kept them from one on other ranks
    training = as_object(as_object(state.get("config")).get("training"))
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
    same_split = [training.get(key) for key in keys] == [plan.batch.micro_batch, plan.batch.accumulation]
    if rows == plan.batch.global_batch or (same_ranks and not same_split):
        return plan, []  # same ranks, another batch: ``same_run`` reports it
    # The same rows a step: learning rates and the order of the data go on as they were.
    batch = resplit(rows, plan.batch.data_parallel_size, plan.batch.micro_batch)
    note = codes.RESUME_BATCH_RESPLIT(
        f"the run has had {rows} rows per step since its start"
        f" on {'other ranks' if same_ranks else _ranks(ranks)}; on {_ranks(plan.world_size)} that is {batch}",
        "training.per_device_train_batch_size",
        f"{plan.batch.micro_batch} × {plan.batch.accumulation} in the config",
        severity=Severity.NOTE,
        evidence={GLOBAL_BATCH: rows},
    )
    return replace(plan, batch=batch), [note]


def other_strategy(state: JsonObject, plan: Plan) -> list[Diagnostic]:
    """Return a note if another strategy saved the checkpoint.

    Raises CheckpointError if this run's strategy cannot read it.
    """
    before, now = str(state.get("strategy", plan.strategy)), plan.strategy
    if before == now:
        return []
    where, strategies = "training.distributed_strategy", f"{before} in the checkpoint, {now} now"
    why = why_unreadable(state_form(before), state_form(now), fp16=plan.precision.scaler)
    if why:
        what = f"a run under '{now}' cannot resume from a checkpoint of '{before}': {why}"
        raise CheckpointError(
            codes.CHECKPOINT_OTHER_STRATEGY(
                what,
                where,
                strategies,
                f"set distributed_strategy: {before}, or run paceline export and start a new run with"
                " model.name_or_path",
            )
        )
    what = (
        "the checkpoint was saved under another strategy; weights, optimizer and position are"
        " restored completely"
    )
    return [codes.RESUME_OTHER_STRATEGY(what, where, strategies, severity=Severity.NOTE)]


def strategy_label(plan: Plan) -> str:
    """Return the strategy's name to show: ``zero2`` for ``deepspeed`` with a file of stage 2."""
    return strategy_spec(plan.strategy).label(plan.engine)


def shard_layout(plan: Plan) -> list[int]:
    """Return the numbers of ranks that shard a tensor's optimizer state: by FSDP, and by tensor
    parallelism."""
    if strategy_spec(plan.strategy).state_split is not StateSplit.SHARDS:
        return [1, 1]
    return [plan.mesh.dp_shard * plan.mesh.cp, plan.mesh.tp]


def requantised(state: JsonObject, plan: Plan) -> list[Diagnostic]:
    """Return a note if moments in few bits were saved on other shards than this run's."""
    before, now = state.get("shard_layout"), shard_layout(plan)
    if not BUILT[plan.optimizer.name].quantised or before in (None, now):
        return []
    return [
        codes.RESUME_REQUANTISED(
            "training.optim",
            f"dp_shard × cp, tp: {before} in the checkpoint, {now} now",
            name=plan.optimizer.name,
        )
    ]


def of_another_program(state: JsonObject) -> list[Diagnostic]:
    """Return a warning if the checkpoint was converted, since its original run is unknown."""
    if CONVERTED not in state:
        return []
    goes_on = "weights and step continue, the optimizer begins anew (no state of it was there)"
    if state.get("optimizer"):
        goes_on = "weights, step and optimizer state continue"
    place, before = "training.resume_from_checkpoint", state[CONVERTED]
    return [codes.RESUME_CONVERTED(place, state=before, goes_on=goes_on)]


def not_compared(state: JsonObject, definition: str) -> Diagnostic | None:
    """Return a warning if the checkpoint's data fingerprint cannot be compared with ours.

    It was then computed by another version than our ``definition``.
    """
    saved = state.get("data_definition") or ""
    if saved == definition:
        return None
    return codes.RESUME_DATA_NOT_COMPARED(
        "data.train", f"{saved or 'an earlier definition'} in the checkpoint, {definition} now"
    )


def best_is_gone(best: Path) -> Diagnostic:
    """Return the finding that the best checkpoint is not there for ``load_best_model_at_end``."""
    return codes.TRAINING_BEST_CHECKPOINT(
        "training.load_best_model_at_end",
        f"{best} does not exist, nor is it beside the checkpoint that is resumed from",
    )


def nothing_left(ended: str, state: TrainState, total: int) -> Diagnostic:
    """Return the note that a resumed run had already ``ended``."""
    if ended == "completed":
        what, hint = (
            "all steps were trained: nothing is left to do",
            "to train on, raise max_steps or num_train_epochs",
        )
    elif state.stopped_by_callback:
        what, hint = (
            "a callback ended this run: it does not train on",
            "to train on, remove the callback from training.callbacks, or resume from an earlier checkpoint",
        )
    else:
        what, hint = (
            "early stopping ended this run: it does not train on",
            "to train on, raise early_stopping_patience",
        )
    return codes.TRAINING_NOTHING_LEFT(
        what,
        "training.resume_from_checkpoint",
        f"step {state.step} of {total}, {state.evals_without_gain} evaluations without a gain",
        hint,
        Severity.NOTE,
    )


_EXPORT = "run paceline export RUN --to DIR and start a new run with model.name_or_path: DIR"
_SIZES = ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate")  # the vocabulary may grow
_WHOLE = "modules_to_save"
_ADAPTER = ("r", "alpha", "use_rslora", "target_modules", _WHOLE, "bias")
# left out where there are none
_INIT = "init_lora_weights"
_UNLESS_DEFAULT = (
    _INIT,
    "target_parameters",
    "oft_block_size",
    "exclude_modules",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
)
# what names the adapted layers: other words may name the same
_LAYERS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
# any shape large enough to be quantised: optimizers of one class with as many bytes for it are compatible
_MATRIX = (64, 128)


def other_training(state: JsonObject, plan: Plan, saved: JsonObject) -> list[Diagnostic]:
    """Return how a run by ``plan`` differs from the one that saved ``state``.

    ``saved`` is the ``config.json`` in the checkpoint.
    """
    before = as_object(as_object(state.get("config")).get("training")).get("algorithm", plan.algorithm)
    if before != plan.algorithm:  # rows, heads and roles follow from it
        return [
            codes.RESUME_OTHER_ALGORITHM(
                "training.algorithm",
                f"{before} in the checkpoint, {plan.algorithm} now",
                before=before,
                algorithm=plan.algorithm,
                export=_EXPORT,
            )
        ]
    return [
        *compare_optimizer(as_object(state.get("optimizer")), plan.optimizer),
        *_adapters(state, plan),
        *_sizes(saved, plan),
    ]


def compare_optimizer(before: JsonObject, now: OptimizerSpec) -> list[Diagnostic]:
    targets = tuple(_names(before.get("target_modules")))
    saved = (
        OptimizerSpec(name=str(before["name"]), args=as_object(before["args"]), target_modules=targets)
        if before
        else None
    )
    if saved is None or _keeps(saved) == _keeps(now):  # older checkpoints lack it
        return []
    return [
        codes.RESUME_OTHER_OPTIMIZER(
            "training.optim",
            f"{_named(saved)} in the checkpoint, {_named(now)} now",
            named=_named(saved),
            export=_EXPORT,
        )
    ]


def _named(optimizer: OptimizerSpec) -> str:
    args = ", ".join(f"{key}={value}" for key, value in optimizer.args.items())
    of = f" on {', '.join(optimizer.target_modules)}" if optimizer.target_modules else ""
    return f"{optimizer.name} with optim_args: {args}{of}" if args else optimizer.name + of


def _keeps(optimizer: OptimizerSpec) -> tuple[Json, ...]:
    built = BUILT.get(optimizer.name)
    if built is None:
        return (optimizer.name,)
    if built.projects:
        rank, kind = optimizer.args.get("rank") or 128, optimizer.args.get("proj_type") or "std"
        return built.made_by, rank, kind, sorted(optimizer.target_modules)
    return built.made_by, built.moment_bytes(_MATRIX, optimizer.args, 4)


def _adapters(state: JsonObject, plan: Plan) -> list[Diagnostic]:
    now, tied = to_json(plan.adapter), plan.shape is not None and plan.shape.tied
    before = None if state.get("adapter") is None else as_object(state["adapter"])
    if (before is None) != (now is None):
        held, trained = (
            ("a complete model", "an adapter") if before is None else ("an adapter", "all weights")
        )
        return [
            codes.RESUME_ADAPTER(
                f"the checkpoint contains {held}, but this run trains {trained}",
                "lora",
                held,
                "use the lora section it was saved with, or start a new run",
            )
        ]
    if before is None or now is None:
        return []
    # Ignore differences that the run itself makes: saved modules, and alpha that follows the rank
    other = [key for key in _ADAPTER if key in before and _shown(before[key]) != _shown(now[key])]
    for key in _UNLESS_DEFAULT:
        if (before.get(key) or None) != (now.get(key) or None):
            none: JsonObject = {key: "true" if key == _INIT else []}
            before, now, other = none | before, none | now, [*other, key]
    # The run itself saves a new head, and the other name of a tied weight
    family = Family() if plan.shape is None else plan.shape.family
    saved, requested = set(_names(before.get(_WHOLE))), set(_names(now[_WHOLE]))
    added = saved - requested - {name.rpartition(".")[2] for name in family.head}
    if _WHOLE in other and requested <= saved and len(added) <= (1 if tied and requested else 0):
        other.remove(_WHOLE)
    if not {*other}.isdisjoint(_LAYERS) and _same_layers(before, plan):
        other = [key for key in other if key not in _LAYERS]
    if other[:2] == ["r", "alpha"]:  # alpha defaults to twice the rank
        other.remove("alpha")
    return [
        codes.RESUME_ADAPTER(
            f"the adapter in the checkpoint was saved with another {key}",
            f"lora.{key}",
            f"{_shown(before[key])} in the checkpoint, {_shown(now[key])} now",
            f"{key}: {_shown(before[key])}; or start a new run",
        )
        for key in other
    ]


def _same_layers(before: JsonObject, plan: Plan) -> bool:
    """Whether checkpoint and plan name the same layers: by full names, name endings or all-linear."""
    if plan.shape is None or plan.shape.experts or plan.adapter is None:
        return False
    try:
        saved = from_json(AdapterSpec, before)
    except TypeError:
        return False
    layers = adapted_layers(plan.shape, saved)
    return bool(layers) and layers == adapted_layers(plan.shape, plan.adapter)


def _names(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, (list, tuple)) else []


def _shown(value: Json) -> str:
    return str(sorted(_names(value)) if isinstance(value, (list, tuple)) else value)


def _sizes(saved: JsonObject, plan: Plan) -> list[Diagnostic]:
    try:
        before = shape_from_config(saved) if saved else None
    except ConfigError:  # an unknown family: its tensors are compared when they are read
        return []
    if before is None or plan.shape is None:
        return []
    other = [n for n in _SIZES if getattr(before, n) != getattr(plan.shape, n)]
    if not other:
        return []
    sizes = ", ".join(
        f"{name} {getattr(before, name)} in the checkpoint, {getattr(plan.shape, name)} now" for name in other
    )
    return [
        codes.RESUME_OTHER_MODEL(
            "the checkpoint belongs to a model of other sizes",
            plan.model_key,
            sizes,
            "use the model it was saved from, or start a new run in another training.output_dir",
        )
    ]


_ROLLOUT = "rollout"
_STEPS = f"training.{_ROLLOUT}.steps_per_generation"


def other_rollout(
    state: JsonObject, plan: Plan, training: TrainingSection, tensors: Collection[str]
) -> list[Diagnostic]:
    """Return errors if this run's settings cannot train on the rest of the checkpoint's rollout.

    ``training``: the config's section; ``tensors``: the names in the checkpoint's manifest. Between two
    rollouts these keys may change.
    """
    spec = algorithm_spec(plan.algorithm)
    if not spec.on_policy or not any(name.startswith(f"{_ROLLOUT}|") for name in tensors):
        return []
    saved = as_object(as_object(state.get("config")).get("training"))
    ranks = int(as_number(state.get("data_parallel_size", plan.batch.data_parallel_size)))
    before = _made_up(spec, TrainingSection.model_validate(saved), ranks)
    now = _made_up(spec, training, plan.batch.data_parallel_size)
    return [
        codes.RESUME_OTHER_ROLLOUT(key, f"{before[key]} in the checkpoint, {now[key]} now", words=words)
        for key, words in _words(spec).items()
        if before[key] != now[key]
    ]


def _words(spec: AlgorithmSpec) -> dict[str, str]:
    return {
        _STEPS: "number of optimizer steps in a pass over a rollout",
        f"{spec.key}.{spec.passes}": "number of passes over a rollout",
        f"{spec.key}.{spec.kl}": "reference",
    }


def _made_up(spec: AlgorithmSpec, training: TrainingSection, ranks: int) -> dict[str, Json]:
    """Return the settings on which a checkpoint's answers depend, by config key."""
    kl = "a KL to it" if spec.kl and spec.options_of(training)[spec.kl] else "none"
    return {
        _STEPS: updates_per_pass(training, ranks),
        f"{spec.key}.{spec.passes}": spec.num_passes(training),
        f"{spec.key}.{spec.kl}": kl,
    }


def cost_of_move(state: JsonObject, plan: Plan, manifest: Manifest) -> list[Diagnostic]:
    """Return a note with the bytes to read and a rank's memory if strategy, ranks or shards have changed."""
    before, now = str(state.get("strategy", plan.strategy)), plan.strategy
    if STRATEGY_LABEL in state:  # an earlier version saved no ZeRO stage of a user's DeepSpeed file
        before, now = str(state[STRATEGY_LABEL]), strategy_label(plan)
    ranks = int(as_number(state.get("world_size", plan.world_size)))
    same_shards = state.get("shard_layout") in (None, shard_layout(plan))
    if (before, ranks) == (now, plan.world_size) and same_shards:
        return []
    what = (
        "weights, optimizer and position go to another layout:"
        f" {before}, {_ranks(ranks)} → {now}, {_ranks(plan.world_size)}"
    )
    read = f"{human_bytes(sum(manifest.files[name].bytes for name in manifest.shards))} read over all ranks"
    return [
        codes.RESUME_MOVED(
            what,
            "training.resume_from_checkpoint",
            f"{read}; {_peak(plan, manifest)}",
            severity=Severity.NOTE,
        )
    ]


def other_layout(state: JsonObject, plan: Plan, manifest: Manifest) -> list[Diagnostic]:
    """Return one note if strategy, ranks or shards differ from the checkpoint's. Raises as
    ``other_strategy``."""
    reason = other_strategy(state, plan)
    return cost_of_move(state, plan, manifest) or reason


def _peak(plan: Plan, manifest: Manifest) -> str:
    """Return the bytes of the fullest rank: weights, optimizer and the tensor that is being read."""
    states = plan.memory.largest if plan.memory is not None else None
    if states is None:
        return "memory of a rank not known for this model"
    kept = states.total - states.gradients  # gradients come with the first backward
    held = f"{human_bytes(kept + _largest_read(plan, manifest))} a rank at peak"
    return f"{held}, weights and optimizer with the tensor that is being read"


def _largest_read(plan: Plan, manifest: Manifest) -> int:
    """Return the bytes of the largest tensor, or of a rank's shard of it."""
    index = manifest.tensors or {}
    largest = max(
        (prod(rows.shape) * STORED_DTYPES[rows.dtype][1] // 8 for rows in index.values()), default=0
    )
    return -(-largest // prod(shard_layout(plan)))


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"
