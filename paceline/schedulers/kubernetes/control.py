"""A job on Kubernetes that runs: its state, its stop and its next start, by ``kubectl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of
from paceline.schedulers.kubernetes.render import FILE, KUSTOMIZATION

_CONDITIONS = "{range .status.conditions[*]}{.type}={.status} {.reason} {.message}{'\\n'}{end}"
#: conditions of an object that starts nothing any more
_ENDED = ("Complete=True", "Completed=True", "Failed=True", "Succeeded=True")


class KubernetesControl(JobControl):
    """A job's name is ``NAMESPACE/KIND/NAME``; the context's namespace where the first is empty."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return the object's conditions, the last one first."""
        lines = _conditions(launched.job, environ)
        if lines is None:
            return f"{launched.job} is not there (deleted, or never applied)"
        return f"{launched.job}: {'; '.join(reversed(lines)) or 'no condition yet'}"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Delete the object: its pods get SIGTERM, and the time to save; nothing starts them again."""
        answer_of(("kubectl", "delete", *_words(launched.job), "--ignore-not-found", "--wait=false"), environ)
        return f"{launched.job} is deleted; its pods save and end"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return ``kubectl replace`` of the job's files; ``apply`` leaves an ended object as it is."""
        lines = _conditions(launched.job, environ)
        if lines is not None and not any(line.startswith(_ENDED) for line in lines):
            raise ConfigError(
                codes.SCHEDULERS_RUNS("launched-by.json", f"{launched.job}: {'; '.join(lines)}")
            )
        folder = Path(launched.files or ".")
        if not launched.files or not (folder / FILE).is_file():
            raise ConfigError(codes.SCHEDULERS_FILES_GONE(str(folder / FILE), scheduler="kubernetes"))
        namespace = launched.job.split("/")[0]
        where = ("--namespace", namespace) if namespace else ()
        files = ("-k", str(folder)) if (folder / KUSTOMIZATION).is_file() else ("-f", str(folder / FILE))
        return ("kubectl", "replace", "--force", *where, *files)


def _words(job: str) -> tuple[str, ...]:
    namespace, kind, name = job.split("/")
    return (kind, name, *(("--namespace", namespace) if namespace else ()))


def _conditions(job: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the object's conditions as lines; None where there is no such object."""
    get = ("kubectl", "get", *_words(job), "--ignore-not-found")
    if not answer_of((*get, "-o", "name"), environ).strip():
        return None
    return answer_of((*get, "-o", f"jsonpath={_CONDITIONS}"), environ).splitlines()


CONTROL = KubernetesControl()
