"""Resume from a checkpoint: find and verify it, compare it with this run, and keep its global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint.format.manifest import CONVERTED, MAX_MANIFEST_BYTES, Manifest
from paceline.checkpoint.format.verify_files import MAX_STATE_BYTES, read_config, read_manifest, read_state
from paceline.checkpoint.load.find_checkpoint import find_checkpoint, same_run
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.node_local.resume import NodesResume
from paceline.checkpoint.save.retention import housekeeping_failed, mark_verified
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.core.rundir import RunDir
from paceline.plan.plan import Plan
from paceline.runtime.process_group.world import World
from paceline.training import codes
from paceline.training.checkpointing.resume_compatibility import (
    FIXED,
    keep_global_batch,
    not_compared,
    of_another_program,
    other_layout,
    other_training,
    requantised,
)
from paceline.training.rank_checks import share_plan


@dataclass(frozen=True)
class ResumePoint:
    """``reader`` is None for a fresh start; ``plan`` has the global batch of the first run."""

    reader: CheckpointReader | None
    plan: Plan
    notes: tuple[Diagnostic, ...]


class _Found(TypedDict):
    """The checkpoint that rank 0 found, the parts that it read, and its diagnostics as JSON."""

    path: str | None
    manifest: str
    state: JsonObject
    notes: list[JsonObject]


Damaged = Mapping[Path, CheckpointError]
_NONE_DAMAGED: Damaged = {}


def open_resume(
    world: World,
    where: str | None,
    run: RunDir,
    plan: Plan,
    state_now: Mapping[str, Json],
    damaged: Damaged = _NONE_DAMAGED,
    nodes: NodesResume | None = None,
) -> ResumePoint:
    """Open the checkpoint to resume from. Collective.

    Tensors are verified as they are read (``CheckpointReader.verify_reads``). ``state_now``: the state that
    this run would save; ``damaged``: known damaged checkpoints; ``nodes``: set if the nodes do not share the
    run directory. Raises CheckpointError or ConfigError, the same on all ranks.
    """
    if not where:
        return ResumePoint(None, plan, ())
    notes: list[Diagnostic] = []
    if nodes is None:
        reader = _opened(world, where, run, notes, damaged)
    else:
        reader = _opened_on_nodes(world, nodes, where, run, notes, damaged)
    if reader is None:
        return ResumePoint(None, plan, tuple(notes))
    if other := other_training(reader.state, plan, read_config(reader.path)):
        raise CheckpointError(*other)
    kept, changes = keep_global_batch(reader.state, plan)
    changes += other_layout(reader.state, plan, reader.manifest)
    changes += requantised(reader.state, plan)
    # With the kept global batch, which the config here need not have.
    changes += same_training(reader.state, {**state_now, "global_batch": kept.batch.global_batch})
    changes += changed_keys(reader.state, as_object(state_now["config"]))
    return ResumePoint(reader, kept, (*notes, *changes))


def _opened(
    world: World, where: str, run: RunDir, notes: list[Diagnostic], damaged: Damaged
) -> CheckpointReader | None:
    """Open the checkpoint that rank 0 finds; it reads the manifest and the state for all. Collective."""

    def find() -> _Found:
        found_notes: list[Diagnostic] = []
        # 0: contents are not read here; each rank verifies what it loads.
        path = find_checkpoint(where, run, found_notes, most_bytes=0, known=damaged)
        messages: list[JsonObject] = [n.to_json() for n in found_notes]
        if path is None:
            return {"path": None, "manifest": "", "state": {}, "notes": messages}
        text = read_manifest(path).to_bytes().decode()
        return {"path": str(path), "manifest": text, "state": read_state(path), "notes": messages}

    checkpoint = share_plan(world, find, MAX_MANIFEST_BYTES + MAX_STATE_BYTES)
    notes += [Diagnostic.from_json(note) for note in checkpoint["notes"]]
    if checkpoint["path"] is None:
        return None
    path, text = Path(checkpoint["path"]), checkpoint["manifest"].encode()
    manifest = Manifest.from_bytes(text, str(path))
    return CheckpointReader(path, ranks=world, manifest=manifest, state=checkpoint["state"])


def _opened_on_nodes(
    world: World,
    nodes: NodesResume,
    where: str,
    run: RunDir,
    notes: list[Diagnostic],
    damaged: Damaged,
) -> CheckpointReader | None:
    """Open the newest checkpoint that is whole over the nodes' disks, each rank on its own. Collective."""
    checkpoint = nodes.find(where, run, notes, damaged)
    if checkpoint is None:
        return None
    state = read_state(checkpoint.path)
    return CheckpointReader(
        checkpoint.path, ranks=world, manifest=checkpoint.manifest, state=state, elsewhere=checkpoint
    )


class ResumeCandidates:
    """The checkpoint that a run resumes from, and earlier ones in case it is damaged.

    ``open_with`` opens the newest checkpoint that is not known to be damaged (``open_resume``). Collective.
    """

    def __init__(
        self, open_with: Callable[[Damaged], ResumePoint], note: Callable[[Diagnostic], None]
    ) -> None:
        self._open_with = open_with
        self._note = note
        self._damaged: dict[Path, CheckpointError] = {}
        self._now = self._open()

    @property
    def plan(self) -> Plan:
        return self._now.plan

    @property
    def reader(self) -> CheckpointReader | None:
        """Return the open checkpoint; None for a fresh start."""
        return self._now.reader

    def former(self, damage: CheckpointError) -> CheckpointReader:
        """Open the checkpoint before the present one, whose bytes were loaded and then found damaged.

        Raises ``damage`` if the earlier one would not replace everything that was loaded.
        """
        last = self._now
        assert last.reader is not None
        self._damaged[last.reader.path] = damage
        last.reader.close()
        self._now = self._open()
        if self._now.reader is None or self._now.plan != last.plan:
            raise damage
        # A tensor that only the damaged one had would stay as it was loaded.
        if set(self._now.reader.names()) != set(last.reader.names()):
            raise damage
        return self._now.reader

    def mark(self) -> None:
        """Record, on one rank, that the checkpoint is sound: all of it has been verified as it was loaded."""
        if self.reader is None:
            return
        try:
            mark_verified(self.reader.path)
        except OSError as exc:
            self._note(
                housekeeping_failed(
                    "the checkpoint is sound, but that could not be recorded beside it",
                    self.reader.path.parent,
                    exc,
                )
            )

    def _open(self) -> ResumePoint:
        candidate = self._open_with(self._damaged)
        for note in candidate.notes:
            self._note(note)
        return candidate


def same_training(state: JsonObject, now: Mapping[str, Json]) -> list[Diagnostic]:
    """Raise CheckpointError if the run would train on other data.

    Returns a warning if the evaluation set differs or is gone, which does not affect training, or if the data
    cannot be compared.
    """
    if converted := of_another_program(state):
        return converted
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
    best, remark = as_object(state.get("train")).get("best_metric"), ""
    if best is not None:
        remark = f"the best value so far, {as_number(best):.4g}, was measured on the former set"
    return [
        codes.RESUME_OTHER_EVALUATION(
            "the evaluation set differs from the one when this checkpoint was saved; training is the same",
            "data.eval",
            remark,
            severity=Severity.WARNING,
        )
    ]


def changed_keys(state: JsonObject, now: JsonObject) -> list[Diagnostic]:
    """Return a warning for each changed config key that a resumed run may change.

    A converted checkpoint has no config of its run.
    """
    findings: list[Diagnostic] = []
    before = as_object(None if CONVERTED in state else state.get("config"))
    for section in ("model", "lora", "training"):
        old, new = as_object(before.get(section)), as_object(now.get(section))
        for key in sorted(set(old) & set(new)):
            if key in QUIET or (section == "lora" and key not in _FREE):
                continue
            for name, then, value in _differing(key, old[key], new[key]):
                findings.append(
                    codes.RESUME_CONFIG_CHANGED(
                        f"{section}.{name}", f"{value} now, {then} then", section=section, key=name
                    )
                )
    return findings


def _differing(key: str, before: Json, now: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield (key, value before, value now) of each difference, key by key within two sections."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differing(f"{key}.{name}", before.get(name), now.get(name))
    elif before != now:
        yield key, before, now


# Keys of adapters that a resumed run may change; others are refused.
_FREE = ("dropout", "loraplus_lr_ratio")
# Keys that do not affect training results.
QUIET = frozenset(
    {
        "output_dir",
        "experiment_name",
        "run_name",
        "project",
        "profile",
        "resume_from_checkpoint",
        "overwrite_output_dir",
        "logging_steps",
        "report_to",
        "callbacks",
        "save_steps",
        "save_total_limit",
        "save_keep_every",
        "save_async",
        "checkpoint_url",
        "upload_timeout",
        "log_level",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "distributed",
        "distributed_strategy",
        "parallelism",
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "dataloader_pin_memory",
    }
)
