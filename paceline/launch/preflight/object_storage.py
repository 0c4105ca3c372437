"""Object storage before a start, in a child process: its claim, and the checkpoint to resume from."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch import codes
from paceline.launch.preflight.child_checks import started_child, wait_for_child

if TYPE_CHECKING:
    from paceline.config.schema import Config

_URL, _RESUME = "training.checkpoint_url", "training.resume_from_checkpoint"


def from_object_storage(config: Config, *, leads: bool, several: bool) -> tuple[Diagnostic, ...]:
    """Bring the checkpoint to resume from onto this node's disk, if it is at a URL; return notes.

    ``leads``: this is the first node, whose run must be the only one that writes to its URL. ``several``: the
    run has other nodes, which may have disks of their own. It takes as long as the checkpoint takes to
    arrive; the store itself must answer within seconds. Raises ConfigError.
    """
    t = config.training
    urls = {
        _URL: t.checkpoint_url,
        _RESUME: t.resume_from_checkpoint if is_url(t.resume_from_checkpoint) else None,
    }
    if not any(urls.values()) or not all(_is_sound(url) for url in urls.values() if url):
        return ()  # the rules name what is wrong
    request = {
        "url": t.checkpoint_url,
        "resume": t.resume_from_checkpoint,
        "run": str(RunDir.at(config.run_directory()).root),
        "access": t.output_access,
        "leads": leads,
        "several": several,
    }
    key = _URL if t.checkpoint_url else _RESUME
    with tempfile.TemporaryDirectory(prefix="paceline-objects-") as folder:
        job, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        job.write_text(json.dumps(request), encoding="utf-8")
        child = started_child("paceline.checkpoint.preflight", "object_storage", str(job), str(answer))
        if ended := wait_for_child(child, None):
            what = "object storage could not be looked at before the start"
            raise ConfigError(codes.TRIAL_UNFINISHED(what, key, ended, "run paceline train again"))
        found = [Diagnostic.from_json(one) for one in json.loads(answer.read_text(encoding="utf-8"))]
    if errors(found):
        raise ConfigError(*(_at(key, finding) for finding in found))
    return tuple(found)


def _is_sound(url: str) -> bool:
    try:
        parse_url(url)
    except ValueError:
        return False
    return True


def _at(key: str, finding: Diagnostic) -> Diagnostic:
    """Put an error at the config's key, with its place in ``found``."""
    if finding.severity is not Severity.ERROR or finding.where in (_URL, _RESUME):
        return finding
    return replace(finding, where=key, found=": ".join(filter(None, (finding.where, finding.found))))
