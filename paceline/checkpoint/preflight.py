"""Checks before a start: a small checkpoint's bytes, and object storage. No torch.

``python -m paceline.checkpoint.preflight JOB ANSWER`` (``launch.child``); JOB selects the check.

For object storage: check that this run may write there, and download the checkpoint to resume from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from paceline.checkpoint import codes
from paceline.checkpoint.format.verify_files import LATEST, scan
from paceline.checkpoint.load.find_checkpoint import (
    BEFORE_BYTES,
    find_checkpoint,
    locate_errors,
    only_missing_files,
)
from paceline.checkpoint.node_local.shared_disks import were_one
from paceline.checkpoint.object_store.commits import read_head
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.transfer import download_named, download_newest
from paceline.checkpoint.object_store.writer import Lease, check_store, wait_until_free
from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.sections.training_steps import AUTO_RESUME
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError, PacelineError
from paceline.core.files import read_run_file
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch.program import program
from paceline.rules import codes as rules_codes

_URL, _RESUME = "training.checkpoint_url", "training.resume_from_checkpoint"


class StartRequest(TypedDict):
    """``leads``: this node's run writes to the URL; ``several``: other nodes may have separate disks;
    ``access``: ``training.output_access``.
    """

    url: str | None
    resume: str | None
    run: str
    access: str
    leads: bool
    several: bool


def check_object_storage(job: StartRequest) -> list[Diagnostic]:
    """Return notes and errors."""
    run, findings = RunDir.at(job["run"]), list[Diagnostic]()
    try:
        with written_for(run.root, job["access"]):
            if job["url"] is not None:
                findings += _own_url(job["url"], run, job)
            if is_url(job["resume"]):
                url = parse_url(str(job["resume"]))
                findings += download_named(open_store(url), url, run.fetched(url.folder_name)).notes
    except PacelineError as error:
        findings += error.diagnostics
    return findings


def _own_url(text: str, run: RunDir, job: StartRequest) -> Iterator[Diagnostic]:
    """Check the run's own URL, and bring its newest checkpoint down if it is newer. Raises PacelineError."""
    url, resume, leads, several = parse_url(text), job["resume"], job["leads"], job["several"]
    quick = open_store(url, patient=False)
    if leads:
        check_store(quick, url)
        name = read_run_file(run.run_id).strip() if run.run_id.is_file() else ""
        wait_until_free(quick, url, name, Lease())
    if resume in (LATEST, AUTO_RESUME):
        apart = several and not were_one(run)
        brought = download_newest(open_store(url), url, run.checkpoints, several=apart)
        if brought is not None:
            yield from brought.notes
        elif resume == LATEST and not several and not scan(run.checkpoints):
            remedy = "set resume_from_checkpoint: auto (starts at step 0 if there is no checkpoint)"
            problem = "there is no checkpoint to resume from, neither on the disk nor at the URL"
            yield rules_codes.RESUME_NO_CHECKPOINT(problem, _RESUME, str(url), remedy, Severity.ERROR)
        return
    head = read_head(quick, str(url))[1]
    if leads and not resume and head is not None and head.checkpoints:
        holder = f"{url}: {head.checkpoints[-1].name}"
        remedy = (
            "set training.resume_from_checkpoint: auto to go on with it, or another training.checkpoint_url"
        )
        yield codes.OBJECTS_HOLDS_RUN("the URL already holds a run", _URL, holder, remedy)


def check_bytes(job: Mapping[str, Any]) -> Iterable[Diagnostic]:
    """Verify the checkpoint before the ranks start; return its errors.

    Reading a large one takes as long as loading it, so the ranks verify it while loading. With ``several``
    nodes, others may have the files that are missing here.
    """
    try:
        find_checkpoint(job["checkpoint"], RunDir.at(job["run"]), most_bytes=BEFORE_BYTES)
    except CheckpointError as error:
        return [] if job["several"] and only_missing_files(error.diagnostics) else locate_errors(error)
    return []


CHECKS: Mapping[str, Callable[[Any], Iterable[Diagnostic]]] = {
    "bytes": check_bytes,
    "object_storage": check_object_storage,
}


@program
def main(job: str, answer: str) -> int:
    """Run a check; return the exit code."""
    request = json.loads(Path(job).read_text(encoding="utf-8"))
    findings = CHECKS[request["check"]](request)
    Path(answer).write_text(json.dumps([finding.to_json() for finding in findings]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
