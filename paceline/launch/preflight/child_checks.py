"""Checks in a child process before a launch: models, data, a look at the checkpoint, and trial imports."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.processes import die_with_parent, send_group
from paceline.launch.redacted_output import own_program

if TYPE_CHECKING:
    from paceline.config.schema import Config
    from paceline.core.rundir import RunDir
    from paceline.plan.plan import Plan

#: The checks take a second; imports of torch, Transformers and user modules from a slow disk take longer.
SECONDS = 180.0
_CHECKS, _FOLDER = "paceline.training.preflight.trial", "paceline-look-"
_NO_TRIES = "--no-imports: problems that only an import can show will appear in the processes of the run"


@dataclass(frozen=True)
class Beforehand:
    """The result of the checks: ``found`` the diagnostics; ``tried`` name → reason of each trial import.

    ``skipped``: the imports were not tried; ``template``: the chat template's name and what it writes, if
    known.
    """

    found: tuple[Diagnostic, ...]
    tried: Mapping[str, str]
    skipped: bool = False
    template: tuple[str, str] | None = None

    def with_decision(self, plan: Plan) -> Plan:
        """Return ``plan`` with decisions on the chat template and on the trial imports."""
        from paceline.plan.plan import Decision

        if self.template is not None:
            plan = replace(plan, decisions=(*plan.decisions, Decision("chat template", *self.template)))
        if not self.tried:
            return plan
        what = "; ".join(f"{name} ({why})" for name, why in self.tried.items())
        decision = (
            Decision("imports", "not tried", f"{what}. {_NO_TRIES}", False)
            if self.skipped
            else Decision("imports", "tried", f"{what}: in a separate process")
        )
        return replace(plan, decisions=(*plan.decisions, decision))


def beforehand(
    config: Config, plan: Plan | None, *, imports: bool = True, elsewhere: bool = False
) -> Beforehand:
    """Check what the config names, and with ``imports`` try the imports that the run will need.

    ``elsewhere``: the run is planned for another machine, so this machine's files and packages say little
    about it: findings become notes.
    """
    from paceline.plan.needs_trial import MODEL, things_to_try

    tries = things_to_try(config, plan, os.environ)
    if elsewhere and not (imports and tries):  # this machine's files and packages are not the run's
        return Beforehand((), tries, skipped=not imports)
    job = {
        "config": config.to_json(),
        "plan": plan.to_json() if plan else None,
        "tries": list(tries),
        "imports": imports,
        "open": not elsewhere,
        "doubt": None,
    }
    # Findings about the model come last; a child process that died becomes a finding itself.
    reply, ended = run_child(job)
    tries |= {
        name: f"{tries[name]}, {why}" if name in tries else why
        for name, why in reply.get("asked", {}).items()
    }
    here = list(_findings(reply.get("looked", ())))
    of_model: list[Diagnostic] = []
    for one in reply.get("tried", ()):
        (of_model if one["name"] == MODEL else here).extend(_findings(one["found"]))
    if ended:
        here.append(_unfinished(reply, ended))
    if elsewhere:
        here = [replace(finding, severity=Severity.NOTE) for finding in here]
    template = reply.get("template")
    known = None if template is None else (str(template[0]), str(template[1]))
    return Beforehand((*here, *of_model), tries, skipped=not imports, template=known)


def looked_in_doubt(partial: Config, doubt: frozenset[str]) -> list[Diagnostic]:
    """Return the errors of a config that failed to load that hold for any values of the keys in ``doubt``."""
    reply, ended = run_child({"config": partial.to_json(), "plan": None, "tries": [], "doubt": sorted(doubt)})
    found = errors(_findings(reply.get("looked", ())))
    return [*found, *([_unfinished(reply, ended)] if ended else [])]


def _findings(found: Any) -> list[Diagnostic]:
    return [Diagnostic.from_json(item) for item in found]


def run_child(job: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Run the checks in a child process; return (its answers until it ended, why it ended early or empty).

    A fork looks at the files. If something is to be imported, a fresh interpreter does both.
    """
    if can_fork() and not job["tries"]:
        reply, ended = _look_in_fork({**job, "imports": False})
        if ended or not (job.get("imports") and reply.get("asked")):
            return reply, ended
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        request, answer = _written(job, Path(folder))
        ended = wait_for_child(started_child(_CHECKS, str(request), str(answer)), SECONDS)
        return _read(answer), ended


def _look_in_fork(job: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        request, answer = _written(job, Path(folder))
        output = Path(folder) / "output"
        code = run_in_fork(_CHECKS, (str(request), str(answer)), SECONDS, output)
        ended = _ended(code, output.read_bytes() if code else b"", SECONDS)
        return _read(answer), ended


def _written(job: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write the job; return its file and that of the answer."""
    request = folder / "job.json"
    request.write_text(json.dumps(job), encoding="utf-8")
    return request, folder / "answer.json"


def _read(answer: Path) -> dict[str, Any]:
    """Return what the child had answered until it ended; empty if nothing."""
    try:
        reply: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return reply


def check_bytes(where: str, run: RunDir, *, several: bool = False) -> None:
    """Verify the sha256 of every byte of the checkpoint to resume from, in a child process.

    ``several``: there are other nodes, which may have what this one lacks. Raises ConfigError. Of a large
    checkpoint the tensors are left to the ranks (``checkpoint.resume``).
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bytes-") as folder:
        answer = Path(folder) / "answer.json"
        several_nodes = ["several"] * several
        child = started_child(
            "paceline.checkpoint.preflight",
            "bytes",
            where,
            str(run.root),
            str(answer),
            *several_nodes,
        )
        if ended := wait_for_child(child, None):
            what = "the checkpoint could not be verified before the start"
            raise ConfigError(
                codes.TRIAL_UNFINISHED(
                    what, "training.resume_from_checkpoint", ended, "run paceline train again"
                )
            )
        found = list(_findings(json.loads(answer.read_text(encoding="utf-8"))))
    if found:
        raise ConfigError(*found)


def started_child(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of this package as a quiet child process: its own session, no network downloads."""
    from paceline.launch.process_spec import import_path, module_argv
    from paceline.launch.processes import die_with_parent

    return subprocess.Popen(
        module_argv(module, *arguments),
        env={**os.environ, **import_path(os.environ), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 (one prctl call): it dies too if a signal ends us early
    )


def wait_for_child(child: subprocess.Popen[bytes], seconds: float | None) -> str:
    """Wait for the child; return why it failed, or an empty string on success.

    Kills its process group on a timeout.
    """
    try:
        _, stderr = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return _ended(None, b"", seconds)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise
    return _ended(child.returncode, stderr, seconds)


def _ended(code: int | None, printed: bytes, seconds: float | None) -> str:
    """Return why a child failed, with the last line it printed; empty for success.

    ``code`` None: it was too late.
    """
    if code is None:
        return f"did not finish within {seconds:.0f} s"
    if code == 0:
        return ""
    last = printed.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"exit code {code}" + (f": {last[0][:300]}" if last else "")


def _unfinished(reply: Mapping[str, Any], ended: str) -> Diagnostic:
    name = reply.get("under_way") or "objects named in the config"
    what = f"{name}: the check did not finish"
    hint = "paceline plan --no-imports skips it; the processes of the run would have the same problem"
    return codes.TRIAL_UNFINISHED(what, found=ended, hint=hint, severity=Severity.WARNING)


_THREADS = Path("/proc/self/task")  # libraries' too


def can_fork() -> bool:
    """Whether this process runs a program of ours in a single thread: a fork has no other threads.

    Nor may the hub's library be imported: it asks whether it is offline once, when it is.
    """
    alone = _THREADS.is_dir() and len(os.listdir(_THREADS)) == 1
    return own_program() and alone and "huggingface_hub" not in sys.modules


def run_in_fork(module: str, arguments: Sequence[str], seconds: float, output: Path) -> int | None:
    """Call ``main`` of a module in a fork; return its exit code, or -N after signal N.

    None if it did not end within ``seconds``: it was killed, with what it had started. ``output``: the file
    that gets what it prints.
    """
    output.touch(0o600)
    dies = die_with_parent()

    def run() -> None:
        os.setsid()
        if dies is not None:
            dies()
        file = os.open(output, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.environ["HF_HUB_OFFLINE"] = "1"
        raise SystemExit(import_module(module).main(*arguments))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        child.join(seconds)
        return child.exitcode
    finally:
        if child.exitcode is None:
            send_group(child.pid or 0, signal.SIGKILL)
            child.kill()
            child.join()
