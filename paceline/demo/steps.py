"""Steps shared by all demos: find a free directory, run `paceline` commands in sequence, report failures."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.demo import codes
from paceline.launch.process_spec import module_argv


def free_directory(wanted: Path | None, default: Path, console: Console) -> RunDir:
    """Return the directory to use: the given one if free.

    Else the default, numbered if an earlier demo exists.
    """
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigError(codes.DEMO_NOT_EMPTY(str(wanted)))
        return RunDir.at(wanted)
    candidates = (default if n == 1 else default.with_name(f"{default.name}-{n}") for n in range(1, 10_000))
    chosen = next(c for c in candidates if not c.exists())
    if chosen != default:
        console.print(f"{default} contains an earlier demo; this one is written to {chosen}.")
    return RunDir.at(chosen)


def not_writable(path: Path, error: OSError) -> ConfigError:
    """Return the error that the demo's files cannot be written."""
    return ConfigError(codes.DEMO_NOT_WRITABLE(str(path), str(error.strerror or error)))


def paceline(*words: str) -> list[str]:
    """Return the command line of a verb with this interpreter."""
    return module_argv("paceline.cli.main", *words)


def answering(run: RunDir, questions: Path, *, initial: bool, max_new_tokens: int = 12) -> list[str]:
    """Return the command line that asks every checkpoint of ``run`` (and the initial model) the questions."""
    argv = module_argv("paceline.training.exact_match", str(run.root), "--questions", str(questions))
    return [*argv, "--max-new-tokens", str(max_new_tokens), *(["--initial"] if initial else [])]


def output_of(step: str, argv: Sequence[str]) -> str:
    """Run a command and return its standard output. Raises PacelineError."""
    done = subprocess.run(list(argv), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Stopped(done.returncode, codes.DEMO_STEP_FAILED(detail=step, returncode=done.returncode))
    return done.stdout


def timed(console: Console, step: str, argv: Sequence[str], *, quiet: bool = False) -> float:
    """Run a command and return its seconds; ``quiet``: print its output only if it fails.

    Raises PacelineError.
    """
    started = time.monotonic()
    child = subprocess.Popen(
        list(argv),
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    try:
        output, _ = child.communicate()
    except KeyboardInterrupt:  # the child got it too: let it save and exit
        child.wait()
        raise
    if child.returncode:
        if output:
            console.print(output, highlight=False, markup=False)
        raise Stopped(child.returncode, codes.DEMO_STEP_FAILED(detail=step, returncode=child.returncode))
    return time.monotonic() - started


class Stopped(PacelineError):
    """A step of the demo failed; its exit code becomes the demo's."""

    def __init__(self, code: int, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.exit_code = code if code > 0 else 128 - code  # type: ignore[assignment]
