"""A checkpoint of a run that is not running, to its URL: what a stopped run had no time for."""

from __future__ import annotations

from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.collective import Alone
from paceline.checkpoint.format.verify_files import read_manifest
from paceline.checkpoint.object_store.background_upload import Uploads, run_id
from paceline.checkpoint.object_store.commits import read_head
from paceline.checkpoint.object_store.lease import check_store, last_run
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.writer import StoreWriter
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.files import read_run_file
from paceline.core.rundir import RunDir


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
        own = run.run_id.is_file() and last_run(store) == read_run_file(run.run_id).strip()
        if own and (newest.name, newest.sequence) == (checkpoint.name, manifest.sequence):
            return []
        if not own or newest.sequence >= manifest.sequence:
            what = "the URL has a newer checkpoint" if own else "the URL holds the checkpoints of another run"
            hint = "give the run's newest checkpoint" if own else "give this run a URL of its own"
            raise CheckpointError(codes.OBJECTS_HOLDS_RUN(what, str(url), newest.name, hint))
    uploads = Uploads(store, url, Alone(), StoreWriter(store, url, run_id(run), RetentionRule(None)))
    uploads.published(checkpoint)
    uploads.end()
    return uploads.take_notes()
