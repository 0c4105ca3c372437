"""Checks in a child process before a launch: models, data, the checkpoint to resume from, trial imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.sections.model import AUTO
from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch import codes
from paceline.launch.child import can_fork, run_job

if TYPE_CHECKING:
    from paceline.config.schema import Config
    from paceline.plan.model.shape import ModelShape
    from paceline.plan.plan import Plan

#: The checks take a second; imports of torch, Transformers and user modules from a slow disk take longer.
SECONDS = 180.0
_CHECKS = "paceline.training.preflight.trial"
_NO_TRIES = "--no-imports: problems that only an import can show will appear in the processes of the run"
_URL, _RESUME = "training.checkpoint_url", "training.resume_from_checkpoint"


@dataclass(frozen=True)
class PreflightResult:
    """The result of the checks: ``found`` the diagnostics; ``tried`` name → reason of each trial import.

    ``skipped``: the imports were not tried. ``template``: the chat template's name and what it writes, if
    known. ``pictures``: the tokens of the first rows' pictures, and their sizes.
    """

    found: tuple[Diagnostic, ...]
    tried: Mapping[str, str]
    skipped: bool = False
    template: tuple[str, str] | None = None
    pictures: tuple[str, str] | None = None

    def with_decision(self, plan: Plan) -> Plan:
        """Return ``plan`` with decisions on the chat template and on the trial imports."""
        from paceline.plan.plan import Decision

        decisions = [*plan.decisions]
        if self.template is not None:
            decisions.append(Decision("chat template", *self.template))
        if self.pictures is not None:
            decisions.append(Decision("pictures", *self.pictures))
        names = "; ".join(f"{name} ({why})" for name, why in self.tried.items())
        if self.tried and self.skipped:
            decisions.append(Decision("imports", "not tried", f"{names}. {_NO_TRIES}", False))
        elif self.tried:
            decisions.append(Decision("imports", "tried", f"{names}: in a separate process"))
        return replace(plan, decisions=tuple(decisions))


def run_preflight(
    config: Config, plan: Plan | None, *, imports: bool = True, elsewhere: bool = False
) -> PreflightResult:
    """Check the files and models in the config, and with ``imports`` try the imports that the run will need.

    ``elsewhere``: the run is planned for another machine, so findings about this machine's files and packages
    become notes.
    """
    from paceline.plan.needs_trial import MODEL, things_to_try

    tries = things_to_try(config, plan, os.environ)
    if elsewhere and not (imports and tries):  # this machine's files and packages are not the run's
        return PreflightResult((), tries, skipped=not imports)
    job = {
        "config": config.to_json(),
        "plan": plan.to_json() if plan else None,
        "tries": list(tries),
        "imports": imports,
        "open": not elsewhere,
        "doubt": None,
    }
    reply, ended = run_child(job)
    tries |= {
        name: f"{tries[name]}, {why}" if name in tries else why
        for name, why in reply.get("asked", {}).items()
    }
    # Findings about the model come last; a child process that died becomes a finding itself
    here, of_model = _findings(reply.get("looked", ())), list[Diagnostic]()
    for trial in reply.get("tried", ()):
        (of_model if trial["name"] == MODEL else here).extend(_findings(trial["found"]))
    if ended:
        here.append(_unfinished(reply, ended))
    if elsewhere:
        here = [replace(finding, severity=Severity.NOTE) for finding in here]
    template, pictures = (_pair(reply.get(name)) for name in ("template", "pictures"))
    return PreflightResult((*here, *of_model), tries, not imports, template, pictures)


def _pair(value: Sequence[str] | None) -> tuple[str, str] | None:
    return None if value is None else (value[0], value[1])


def images_in_rows(config: Config, shape: ModelShape | None, *, imports: bool = True) -> bool:
    """Whether the first rows of a data set have images, read in a child process. False if it is not known, or
    does not decide ``model.vision``.
    """
    if config.model.vision != AUTO or shape is None or not shape.composite:
        return False
    job = {"config": config.to_json(), "tries": [], "rows": False}
    known = run_child(job)[0].get("images")
    if known is None and imports:
        reply, _ = run_job(_CHECKS, {**job, "rows": True}, SECONDS)
        known = (reply or {}).get("images")
    return bool(known)


def check_in_doubt(partial: Config, doubt: frozenset[str]) -> list[Diagnostic]:
    """Return the errors of an invalid config that hold for any values of the keys in ``doubt``."""
    reply, ended = run_child({"config": partial.to_json(), "plan": None, "tries": [], "doubt": sorted(doubt)})
    unfinished = [_unfinished(reply, ended)] if ended else []
    return [*errors(_findings(reply.get("looked", ()))), *unfinished]


def run_child(job: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Run the checks in a child process; return (its answers so far, the reason of an early end or empty).

    A fork checks the files. If imports are needed, a fresh interpreter does both.
    """
    if can_fork() and not job["tries"]:
        reply, ended = run_job(_CHECKS, {**job, "imports": False}, SECONDS, fork=True)
        if ended or not (job.get("imports") and reply.get("asked")):
            return reply or {}, ended
    reply, ended = run_job(_CHECKS, job, SECONDS)
    return reply or {}, ended


Forked = Callable[[str, Sequence[str]], int | None]


def check_bytes(
    where: str, run: RunDir, *, several: bool = False, forked: Forked = lambda module, arguments: None
) -> None:
    """Verify the sha256 of every byte of the checkpoint to resume from, in a child process.

    ``several``: there are other nodes, which may have this one's missing files; ``forked``: as in
    ``launch.child``. Raises ConfigError. The
    tensors of a large checkpoint are left to the ranks (``checkpoint.load.reader``).
    """
    job = {"check": "bytes", "checkpoint": where, "run": str(run.root), "several": several}
    failure = "the checkpoint could not be verified before the start"
    if problems := _required(job, failure, _RESUME, forked):
        raise ConfigError(*problems)


def from_object_storage(config: Config, *, leads: bool, several: bool) -> tuple[Diagnostic, ...]:
    """Download the checkpoint to resume from to this node's disk, if it is at a URL; return notes.

    ``leads``: this is the first node, whose run must be the only one that writes to its URL. ``several``: the
    run has other nodes, which may have separate disks. The download has no time limit, but the store must
    answer within seconds. Raises ConfigError.
    """
    t = config.training
    urls = [t.checkpoint_url, t.resume_from_checkpoint if is_url(t.resume_from_checkpoint) else None]
    if not any(urls) or not all(_is_sound(url) for url in urls if url):
        return ()  # the rules name what is wrong
    job = {
        "check": "object_storage",
        "url": t.checkpoint_url,
        "resume": t.resume_from_checkpoint,
        "run": str(RunDir.at(config.run_directory()).root),
        "access": t.output_access,
        "leads": leads,
        "several": several,
    }
    key = _URL if t.checkpoint_url else _RESUME
    failure = "object storage could not be looked at before the start"
    findings = _required(job, failure, key)
    if errors(findings):
        raise ConfigError(*(_at_key(key, finding) for finding in findings))
    return tuple(findings)


def _required(
    job: Mapping[str, Any], failure: str, key: str, forked: Forked = lambda module, arguments: None
) -> list[Diagnostic]:
    """Return the findings of a check that a start needs. Raises ConfigError if it does not finish."""
    reply, ended = run_job("paceline.checkpoint.preflight", job, forked=forked)
    if ended:
        raise ConfigError(codes.TRIAL_UNFINISHED(failure, key, ended, "run paceline train again"))
    return _findings(reply)


def _findings(items: Iterable[Any]) -> list[Diagnostic]:
    return [Diagnostic.from_json(item) for item in items]


def _unfinished(reply: Mapping[str, Any], ended: str) -> Diagnostic:
    message = f"{reply.get('under_way') or 'objects named in the config'}: the check did not finish"
    remedy = "paceline plan --no-imports skips it; the processes of the run would have the same problem"
    return codes.TRIAL_UNFINISHED(message, found=ended, hint=remedy, severity=Severity.WARNING)


def _is_sound(url: str) -> bool:
    try:
        parse_url(url)
    except ValueError:
        return False
    return True


def _at_key(key: str, finding: Diagnostic) -> Diagnostic:
    """Put an error at the config's key, with its place in ``found``."""
    if finding.severity is not Severity.ERROR or finding.where in (_URL, _RESUME):
        return finding
    return replace(finding, where=key, found=": ".join(filter(None, (finding.where, finding.found))))
