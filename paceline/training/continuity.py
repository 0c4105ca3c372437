"""What a resumed run must share with the one before: the same samples in the same order. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.checkpoint.format.manifest import CONVERTED
from paceline.config.optimizers import BUILT, StateSplit
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject, as_number, as_object
from paceline.plan.batch import resplit
from paceline.plan.plan import Plan
from paceline.plan.strategies.base import state_form, strategy_spec
from paceline.plan.strategies.state_form import why_unreadable
from paceline.training import codes
from paceline.training.state import TrainState

STRATEGY_LABEL = "strategy_label"  # where a checkpoint's state has it
# What a resumed run must not change: the samples and their order.
FIXED = ("data_fingerprint", "global_batch", "seq_len", "packing", "seed")


def keep_global_batch(state: JsonObject, plan: Plan) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan with micro-batch and accumulation recomputed to keep the global batch (contract 4).

    Applies if the number of ranks has changed, now or when the checkpoint's own run resumed; the diagnostics
    say so.
    """
    rows, ranks = (
        int(as_number(state.get("global_batch", plan.batch.global_batch))),
        int(as_number(state.get("world_size", plan.world_size))),
    )
    sharing = int(as_number(state.get("data_parallel_size", plan.batch.data_parallel_size)))
    same_ranks = (ranks, sharing) == (plan.world_size, plan.batch.data_parallel_size)
    if rows == plan.batch.global_batch or (same_ranks and not _same_split_configured(state, plan)):
        return plan, []  # same ranks, another batch: ``same_run`` reports it
    batch = resplit(rows, plan.batch.data_parallel_size, plan.batch.micro_batch)
    note = codes.RESUME_BATCH_RESPLIT(
        f"the run has had {rows} rows per step since its start on {'other' if same_ranks else ranks} ranks;"
        f" on {plan.world_size} ranks that is {batch}",
        "training.per_device_train_batch_size",
        f"{plan.batch.micro_batch} × {plan.batch.accumulation} in the config",
        severity=Severity.NOTE,
    )
    return replace(plan, batch=batch), [note]


def _same_split_configured(state: JsonObject, plan: Plan) -> bool:
    """Whether the checkpoint's config asks for this plan's micro-batch and accumulation.

    With other rows per step on the same ranks, that run had kept them from one on other ranks.
    """
    training = as_object(as_object(state.get("config")).get("training"))
    then = training.get("per_device_train_batch_size"), training.get("gradient_accumulation_steps")
    return then == (plan.batch.micro_batch, plan.batch.accumulation)


def other_strategy(state: JsonObject, plan: Plan) -> list[Diagnostic]:
    """Return a note if another strategy saved the checkpoint.

    Raises CheckpointError if this run's strategy cannot read it.
    """
    before, now = str(state.get("strategy", plan.strategy)), plan.strategy
    if before == now:
        return []
    where, found = "training.distributed_strategy", f"{before} in the checkpoint, {now} now"
    why = why_unreadable(state_form(before), state_form(now), fp16=plan.precision.scaler)
    if why:
        what = f"a run under '{now}' cannot resume from a checkpoint of '{before}': {why}"
        hint = (
            f"set distributed_strategy: {before}, or run paceline export and start a new run with"
            " model.name_or_path"
        )
        raise CheckpointError(codes.CHECKPOINT_OTHER_STRATEGY(what, where, found, hint))
    what = (
        "the checkpoint was saved under another strategy; weights, optimizer and position are"
        " restored completely"
    )
    return [codes.RESUME_OTHER_STRATEGY(what, where, found, severity=Severity.NOTE)]


def strategy_label(plan: Plan) -> str:
    """Return the strategy's name to show: ``zero2`` for ``deepspeed`` with a file of stage 2."""
    return strategy_spec(plan.strategy).label(plan.engine)


def shard_layout(plan: Plan) -> list[int]:
    """Return over how many ranks a tensor's optimizer state is cut: by FSDP, and by tensor parallelism."""
    if strategy_spec(plan.strategy).state_split is not StateSplit.SHARDS:
        return [1, 1]
    return [plan.mesh.dp_shard * plan.mesh.cp, plan.mesh.tp]


def requantised(state: JsonObject, plan: Plan) -> list[Diagnostic]:
    """Return a note if moments in few bits were saved on other shards than this run's."""
    before, now = state.get("shard_layout"), shard_layout(plan)
    if not BUILT[plan.optimizer.name].quantised or before in (None, now):
        return []
    found = f"dp_shard × cp, tp: {before} in the checkpoint, {now} now"
    return [codes.RESUME_REQUANTISED("training.optim", found, name=plan.optimizer.name)]


def of_another_program(state: JsonObject) -> list[Diagnostic]:
    """Return a warning if the checkpoint was converted: nothing is known of the run that it comes from."""
    if CONVERTED not in state:
        return []
    return [codes.RESUME_CONVERTED("training.resume_from_checkpoint", state=state[CONVERTED])]


def not_compared(state: JsonObject, definition: str) -> Diagnostic | None:
    """Return a warning if the checkpoint's data fingerprint cannot be compared with ours.

    It was then computed by another definition than ``definition``, ours.
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
    """Return the note that a resumed run had ``ended`` already."""
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
    found = f"step {state.step} of {total}, {state.evals_without_gain} evaluations without a gain"
    return codes.TRAINING_NOTHING_LEFT(what, "training.resume_from_checkpoint", found, hint, Severity.NOTE)
