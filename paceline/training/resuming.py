"""Resume from a checkpoint: find and verify it, compare it with this run, and keep its global batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint.reader import CheckpointReader
from paceline.checkpoint.resume import find_checkpoint, open_checkpoint, same_run
from paceline.checkpoint.ties import read_config
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.core.rundir import RunDir
from paceline.plan.plan import Plan
from paceline.runtime.world import World
from paceline.training import codes
from paceline.training.agree import share_plan
from paceline.training.continuity import FIXED, keep_global_batch, not_compared, other_strategy, requantised
from paceline.training.same_model import other_training


@dataclass(frozen=True)
class Resumed:
    """``reader`` is None for a fresh start; ``plan`` has the global batch of the first run."""

    reader: CheckpointReader | None
    plan: Plan
    notes: tuple[Diagnostic, ...]


class _Found(TypedDict):
    """The checkpoint that rank 0 found, and its diagnostics as JSON."""

    path: str | None
    notes: list[JsonObject]


def open_resume(
    world: World, where: str | None, run: RunDir, plan: Plan, state_now: Mapping[str, Json]
) -> Resumed:
    """Open the checkpoint to resume from. Collective.

    ``state_now`` is what this run would save. Raises CheckpointError or ConfigError, the same on all ranks.
    """
    if not where:
        return Resumed(None, plan, ())

    def find() -> _Found:
        notes: list[Diagnostic] = []
        path = find_checkpoint(where, run, notes)
        return {"path": None if path is None else str(path), "notes": [n.to_json() for n in notes]}

    found = share_plan(world, find)
    notes = [Diagnostic.from_json(note) for note in found["notes"]]
    if found["path"] is None:
        return Resumed(None, plan, tuple(notes))
    reader = open_checkpoint(Path(found["path"]), verify=world.rank != 0)  # rank 0 has verified it just now
    if other := other_training(reader.state, plan, read_config(reader.path)):
        raise CheckpointError(*other)
    kept, changes = keep_global_batch(reader.state, plan)
    changes += other_strategy(reader.state, plan)
    changes += requantised(reader.state, plan)
    changes += same_training(reader.state, {**state_now, "global_batch": kept.batch.global_batch})
    changes += changed_keys(as_object(reader.state.get("config")), as_object(state_now["config"]))
    return Resumed(reader, kept, (*notes, *changes))


def same_training(state: JsonObject, now: Mapping[str, Json]) -> list[Diagnostic]:
    """Raise CheckpointError if the run would train on other data.

    Returns a warning if the evaluation set differs or is gone, which does not affect training, or if the data
    cannot be compared.
    """
    # Equal training rows suffice; the data fingerprint covers the evaluation set too
    trained = state.get("train_fingerprint") or None
    same_rows = trained is not None and trained == now["train_fingerprint"]
    same_data = state.get("data_fingerprint") == now["data_fingerprint"]
    unknown = None if same_rows or same_data else not_compared(state, str(now["data_definition"]))
    same_run(
        state,
        {field: now[field] for field in FIXED},
        override=("data_fingerprint",) if same_rows or unknown else (),
    )
    if unknown is not None or same_data:
        return [] if unknown is None else [unknown]
    what = "the evaluation set differs from the one when this checkpoint was saved; training is the same"
    best, found = as_object(state.get("train")).get("best_metric"), ""
    if best is not None:
        found = f"the best value so far, {as_number(best):.4g}, was measured on the former set"
    return [codes.RESUME_OTHER_EVALUATION(what, "data.eval", found, severity=Severity.WARNING)]


def changed_keys(before: JsonObject, now: JsonObject) -> list[Diagnostic]:
    """Return a warning for each changed config key that a resumed run may change."""
    found = []
    for section in ("model", "training"):
        old, new = as_object(before.get(section)), as_object(now.get(section))
        for key in sorted(set(old) & set(new)):
            if old[key] != new[key] and key not in QUIET:
                found.append(
                    codes.RESUME_CONFIG_CHANGED(
                        f"{section}.{key} differs from the run that saved this checkpoint",
                        f"{section}.{key}",
                        f"{new[key]} now, {old[key]} then",
                        severity=Severity.WARNING,
                    )
                )
    return found


# Keys that do not affect training results.
QUIET = frozenset(
    {
        "output_dir",
        "experiment_name",
        "run_name",
        "resume_from_checkpoint",
        "overwrite_output_dir",
        "logging_steps",
        "report_to",
        "save_steps",
        "save_total_limit",
        "log_level",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "distributed",
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "dataloader_pin_memory",
    }
)
