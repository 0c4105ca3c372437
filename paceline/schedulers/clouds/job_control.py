"""Jobs of SkyPilot and dstack, asked by their names: both list their jobs as JSON."""

from __future__ import annotations

import re
import shlex
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json, as_object, parse_json
from paceline.launch import launch_record
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.clouds.node_script import Cloud
from paceline.schedulers.control import JobControl, answer_of, submit_again
from paceline.schedulers.job import ClusterJob, dns_name


@dataclass(frozen=True)
class ListedJob:
    """A job as its service lists it; ``ended``: the service starts nothing of it any more."""

    status: str
    reason: str
    ended: bool


class CloudControl(JobControl):
    """A job by its name. Several may have had it; the newest counts."""

    cloud: Cloud

    @abstractmethod
    def newest(self, name: str, environ: Mapping[str, str]) -> ListedJob | None:
        """Return the newest job of a name; None where the service lists none."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return the service's status and its reason."""
        listed = self.newest(launched.job, environ)
        if listed is None:
            return f"job {launched.job}: {self.cloud.name} lists none of this name"
        return f"job {launched.job}: {listed.status}{f' ({listed.reason})' if listed.reason else ''}"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command that submitted the job."""
        listed = self.newest(launched.job, environ)
        if listed is not None and not listed.ended:
            raise ConfigError(codes.SCHEDULERS_RUNS("launched-by.json", self.state(launched, environ)))
        return submit_again(launched)


def variables(job: ClusterJob, cloud: Cloud) -> dict[str, str]:
    """Return the site's variables, and those by which a run records what has started it."""
    record = {
        launch_record.SCHEDULER: cloud.key,
        launch_record.JOB: dns_name(job.name),
        launch_record.FILES: str(job.out),
    }
    return {**record, **job.env}


def listed_json(argv: Sequence[str], environ: Mapping[str, str], key: str = "") -> list[Json]:
    """Return what a service's command lists, below ``key`` if given; lines before its JSON are for people.

    Raises PacelineError for another answer: a job that is not seen could be submitted twice.
    """
    printed = answer_of(argv, environ)
    for begin in re.finditer(r"^[\[{]", printed, re.MULTILINE):
        with suppress(ValueError):
            value = parse_json(printed[begin.start() :].encode())
            listed = as_object(value).get(key) if key else value
            if isinstance(listed, list):
                return listed
    reason = f"no list in its answer: {printed.strip()[:200]!r}"
    raise PacelineError(codes.SCHEDULERS_REFUSED(shlex.join(argv), hint="see what it prints", reason=reason))
