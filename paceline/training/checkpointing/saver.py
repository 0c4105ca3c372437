"""The saves of a run: write a durable checkpoint, now or during training, and report it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.checkpoint.checkpointer import AsyncCheckpointer, AsyncSaveResult, Checkpointer
from paceline.checkpoint.format.verify_files import step_name
from paceline.checkpoint.object_store.background_upload import Deadline, Uploads
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject
from paceline.data.prepare.prepare import Prepared
from paceline.plan.plan import Plan
from paceline.protocols.shard import Shard
from paceline.runlog import events
from paceline.runtime.process_group.background_exchange import LateFlag
from paceline.training.checkpointing.contents import (
    adapter_of,
    hugging_face_files,
    run_state,
)
from paceline.training.loop.window_source import RunComponents

Published = Callable[[events.CheckpointSaved, Sequence[Diagnostic]], None]
RESCUE_SECONDS = 30.0  # how long a rank with an error of its own waits for a save that is under way


class RunContents:
    """What a checkpoint of this run contains at a step.

    ``hf_config``: the exported model's config; ``base`` returns the files stored next to it, ``carried`` the
    tensors that an export copies from the base folder. Both are called on rank 0.
    """

    def __init__(
        self,
        parts: RunComponents,
        plan: Plan,
        prepared: Prepared,
        hf_config: Mapping[str, Json],
        *,
        base: Callable[[], Mapping[str, bytes]],
        carried: Callable[[], JsonObject] = dict,
    ) -> None:
        self.parts, self.plan, self.prepared = parts, plan, prepared
        root = parts.handles[parts.algorithm.trains[0]].root
        main, adapter = parts.runner.strategy.world.is_main, adapter_of(root)
        self.files: dict[str, bytes] = {}
        if main:
            self.files = hugging_face_files(hf_config, root.hf, prepared, base(), adapter)
        self._beside = carried() if main else {}

    def state(self) -> JsonObject:
        """Return the JSON part."""
        return run_state(self.plan, self.prepared, self.parts, self._beside)

    def shards(self, step: int) -> Iterator[Shard]:
        """Yield this rank's tensors of every trained role, and of the windows. Collective."""
        for role in self.parts.algorithm.trains:
            yield from self.parts.runner.strategy.export_state(self.parts.handles[role])
        yield from self.parts.windows.shards(step)


class RunCheckpointer:
    """The saves of a run, called by the trainer; ``published`` is called on this rank for each durable
    checkpoint.

    With ``beside`` a save runs during training, and all ranks see its end at the same step. With ``uploads``
    each checkpoint also goes to object storage; ``note`` gets the reports.
    """

    def __init__(
        self,
        contents: RunContents,
        checkpointer: Checkpointer,
        published: Published,
        *,
        keep_best: bool,
        beside: AsyncCheckpointer | None = None,
        uploads: Uploads | None = None,
        note: Callable[[Diagnostic], None] = lambda diagnostic: None,
    ) -> None:
        self._contents = contents
        self._checkpointer = checkpointer
        self._published = published
        self._keep_best = keep_best
        self._beside = beside
        self._uploads = uploads
        self._note = note
        self._working: Callable[[bool], bool] = bool

    def save(self, step: int) -> bool:
        """Save, or start a save; return whether the checkpoint is durable. Collective. Raises
        CheckpointError."""
        contents = self._contents
        if self._keep_best:
            # Before the save, which may remove old checkpoints.
            self._checkpointer.protect(contents.parts.state.best_step)
        state, shards = contents.state(), contents.shards(step)
        if self._beside is not None:
            # a rank counts as working until all have said otherwise
            self._working = LateFlag(contents.parts.runner.strategy.world, before=True)
            self._beside.start(step, shards, state, contents.files)
            return False
        path = self._checkpointer.save(step, shards, state, contents.files)
        cost = self._checkpointer.last
        assert cost is not None
        event = events.CheckpointSaved(step, str(path), cost.seconds, cost.num_bytes)
        self._published(event, self._checkpointer.take_notes())
        self._send(path)
        return True

    def settle(self, *, wait: bool) -> bool:
        """Return whether a save during training has become durable. Collective.

        Without ``wait`` it checks only once every rank has finished its part. Raises the save's
        CheckpointError, on all ranks at the same step.
        """
        self._report_uploads()
        beside = self._beside
        if beside is None or not beside.is_running:
            return False
        # Only a flag, a step late: training never waits for a save here.
        if not wait and self._working(beside.is_working):
            return False
        return self._ended(beside.end())

    def rescue(self) -> None:
        """Let a save that is under way end before this rank's error ends the run. Not collective."""
        if self._beside is not None:
            # The rank's own error is the one to report.
            with contextlib.suppress(CheckpointError):
                self._ended(self._beside.end(RESCUE_SECONDS))

    def _ended(self, saved: AsyncSaveResult | None) -> bool:
        assert self._beside is not None
        if saved is None:
            return False
        cost = saved.cost
        event = events.CheckpointSaved(
            saved.step, str(saved.path), cost.seconds, cost.num_bytes, saved.waited
        )
        self._published(event, self._beside.take_notes())
        self._send(saved.path)
        return True

    def finish(self, waiting: Callable[[], None], deadline: Deadline) -> bool:
        """Wait until the last checkpoint is uploaded; ``waiting`` is called meanwhile. Collective.

        Return False if the upload was unfinished at the ``deadline`` after a stop. Raises CheckpointError.
        """
        if self._uploads is None:
            return True
        try:
            return self._uploads.end(waiting, deadline, self._contents.parts.runner.strategy.world.any)
        finally:
            self._report_uploads()

    @property
    def uploads_left(self) -> bool:
        """Whether an abandoned upload is still running on this rank."""
        return self._uploads is not None and self._uploads.is_working

    def _send(self, path: Path) -> None:
        if self._uploads is not None:
            best = self._contents.parts.state.best_step if self._keep_best else None
            self._uploads.published(path, None if best is None else step_name(best))

    def _report_uploads(self) -> None:
        for note in self._uploads.take_notes() if self._uploads is not None else ():
            self._note(note)
