"""``paceline checkpoints`` at a URL: list and verify the store's checkpoints, upload those that a stopped run
left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.collective import SingleRank
from paceline.checkpoint.format.verify_files import LATEST, read_manifest
from paceline.checkpoint.load.find_checkpoint import ListedCheckpoint
from paceline.checkpoint.object_store.background_upload import Uploads, run_id
from paceline.checkpoint.object_store.commits import read_head
from paceline.checkpoint.object_store.interface import ObjectStore
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.transfer import manifest_of, stored_checkpoint, verify_stored
from paceline.checkpoint.object_store.writer import StoreWriter, check_store, holder, last_run
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.files import read_run_file
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.core.units import human_seconds


def list_stored(store: ObjectStore, url: ObjectUrl) -> list[ListedCheckpoint]:
    """Return the checkpoints that the last commit names, oldest first; of these only the newest has an age.

    Reads nothing else. Raises CheckpointError.
    """
    _, head = read_head(store, str(url))
    rows = []
    for checkpoint in head.checkpoints if head is not None else ():
        newest = head is not None and checkpoint == head.checkpoints[-1]
        age = max(0.0, time.time() - head.created) if head is not None and newest else None
        marks = (LATEST,) if newest else ()
        rows.append(
            ListedCheckpoint(
                checkpoint.name,
                f"{url}/{checkpoint.name}",
                checkpoint.step,
                checkpoint.num_bytes,
                "",
                None,
                age,
                "",
                None,
                marks,
                "committed",
            )
        )
    return [row for row in rows if url.step in (None, row.name)]


def state_of(store: ObjectStore, url: ObjectUrl) -> str:
    """Return the last commit at a URL, and the run that holds it, as lines. Raises CheckpointError."""
    number, head = read_head(store, str(url))
    newest = head.checkpoints[-1] if head is not None and head.checkpoints else None
    lines = [f"held by     {holder(store) or 'no run'}"]
    if head is None or newest is None:
        return "\n".join([*lines, "checkpoint  none committed"])
    age = human_seconds(max(0.0, time.time() - head.created))
    lines += [f"checkpoint  {url}/{newest.name}, commit {head.number}, {age} ago"]
    if head.number != number:
        lines += [f"unreadable  commit {number}: written in part, it commits nothing"]
    return "\n".join(lines)


@dataclass(frozen=True)
class StoredVerdict:
    """The result of reading a checkpoint at a URL, and its error (none: every hash is right)."""

    where: str
    step: int
    num_bytes: int
    found: tuple[Diagnostic, ...]

    def to_json(self) -> JsonObject:
        return {
            "path": self.where,
            "step": self.step,
            "bytes": self.num_bytes,
            "sound": not self.found,
            "found": [d.to_json() for d in self.found],
        }


def verdicts(store: ObjectStore, url: ObjectUrl, which: str) -> Iterator[StoredVerdict]:
    """Read checkpoints at a URL whole, and compare every hash: the one in ``url``, else ``all``, the
    ``latest`` or the one with this name. Raises CheckpointError where there is no such checkpoint.
    """
    wanted = [url] if url.step is not None else [_named(url, which)]
    if url.step is None and which == "all":
        wanted = [replace(url, step=row.name) for row in list_stored(store, url)] or [url]
    for each in wanted:
        checkpoint, findings = stored_checkpoint(store, each), tuple[Diagnostic, ...]()
        try:
            verify_stored(store, checkpoint.folder, manifest_of(store, checkpoint)[0])
        except CheckpointError as error:
            findings = error.diagnostics
        yield StoredVerdict(f"{url}/{checkpoint.name}", checkpoint.step, checkpoint.num_bytes, findings)


def _named(url: ObjectUrl, which: str) -> ObjectUrl:
    return url if which in ("all", LATEST) else replace(url, step=which)


def send(checkpoint: Path, run: RunDir, url: ObjectUrl) -> list[Diagnostic]:
    """Upload a checkpoint of ``run`` as the run itself does, and return notes; none if it is there already.

    The caller has verified it, and holds the run's lock. Nothing at the URL is removed. Raises
    CheckpointError, also if the URL is another run's, or has a newer one; and OSError.
    """
    check_store(open_store(url, patient=False), url)
    store = open_store(url)
    manifest, head = read_manifest(checkpoint), read_head(store, str(url))[1]
    if head is not None and head.checkpoints:
        newest = head.checkpoints[-1]
        same_run = run.run_id.is_file() and last_run(store) == read_run_file(run.run_id).strip()
        if same_run and (newest.name, newest.sequence) == (checkpoint.name, manifest.sequence):
            return []
        if not same_run or newest.sequence >= manifest.sequence:
            problem = (
                "the URL has a newer checkpoint"
                if same_run
                else "the URL holds the checkpoints of another run"
            )
            raise CheckpointError(
                codes.OBJECTS_HOLDS_RUN(
                    problem,
                    str(url),
                    newest.name,
                    "give the run's newest checkpoint" if same_run else "give this run a URL of its own",
                )
            )
    uploads = Uploads(store, url, SingleRank(), StoreWriter(store, url, run_id(run), RetentionRule(None)))
    uploads.published(checkpoint)
    uploads.end()
    return uploads.take_notes()
