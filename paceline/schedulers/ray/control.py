"""A job on a Ray cluster that runs: its state, its stop and its next start, by ``ray job``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import read_bytes
from paceline.core.json_types import as_list, parse_json
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of

#: Next to a job's files: argv of ``ray job submit``.
SUBMITTED = "submit.json"
_RUNNING = ("PENDING", "RUNNING", "is still running", "is pending")


class RayControl(JobControl):
    """A job's name is ``SUBMISSION@ADDRESS``, the address that of the cluster's dashboard."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return what ``ray job status`` says."""
        name, address = _parts(launched.job)
        lines = answer_of(("ray", "job", "status", "--address", address, name), environ).splitlines()
        facts = [line.strip() for line in lines if name in line or "tatus" in line]
        return f"job {name}: {'; '.join(facts)}"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Stop the driver, which tells every node to save."""
        name, address = _parts(launched.job)
        answer_of(("ray", "job", "stop", "--no-wait", "--address", address, name), environ)
        return f"job {name} saves and ends; its driver starts nothing again"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command that submitted the job."""
        state = self.state(launched, environ)
        if any(word in state for word in _RUNNING):
            raise ConfigError(codes.SCHEDULERS_RUNS("launched-by.json", state))
        file = Path(launched.files or ".") / SUBMITTED
        if not launched.files or not file.is_file():
            raise ConfigError(codes.SCHEDULERS_FILES_GONE(str(file), scheduler="ray"))
        return tuple(str(word) for word in as_list(parse_json(read_bytes(file))))


def _parts(job: str) -> tuple[str, str]:
    name, _, address = job.partition("@")
    return name, address


def written(submit: tuple[str, ...]) -> dict[str, str]:
    """Return the file from which ``resume`` reads the command."""
    return {SUBMITTED: json.dumps(submit, indent=1) + "\n"}


CONTROL = RayControl()
