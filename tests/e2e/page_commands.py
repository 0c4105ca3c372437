"""The commands of a page's code blocks: read, and run as a user types them, in a folder like a checkout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from support import Run, run_process

ROOT = Path(__file__).resolve().parents[2]
TIME = "a while"
#: What a command may need, and whether it is here.
NEEDS: dict[str, Callable[[], bool]] = {
    TIME: lambda: True,
    "an NVIDIA card": lambda: False,  # tests/gpu
    "an NVIDIA card and DCGM": lambda: False,
    "a browser": lambda: False,  # tests/unit/watch opens the page in one
    "iftop, root and several nodes": lambda: False,
    "InfiniBand": lambda: False,
    "the process id of a rank, or of `paceline train` (all its ranks)": lambda: False,  # tested
    "finished runs": lambda: False,  # tests/unit/cli calibrates by some
    "a second run": lambda: False,  # tests/unit/cli compares two
    "several nodes": lambda: False,  # tests/e2e/test_guide_commands.py, on loopback
    "a fresh checkout": lambda: False,  # CI sets one up
    "minutes": lambda: False,  # tests/e2e/test_demo.py
    "a client": lambda: False,  # tests/unit/evaluation asks the server
    "an account": lambda: False,  # tests/unit/checkpoint pushes to a stand-in
    "object storage": lambda: False,  # tests/integration has stand-ins of stores
    "another program's checkpoint": lambda: False,  # tests/unit/checkpoint converts recorded ones
    "another program's files": lambda: False,  # tests/unit/config imports recorded ones
    "a script of yours": lambda: False,  # tests/integration starts one
    "Slurm": lambda: False,  # tests/integration/test_slurm.py has one of its own
    "hosts": lambda: False,  # tests/unit/schedulers runs the scripts
    "a run": lambda: False,  # tests/integration asks, stops and resumes one
    "Docker": lambda: False,  # scripts/try_dockerfile.py
    "vLLM": lambda: False,
    "TRL": lambda: False,  # the page installs it: tests/unit/algorithms
    "gguf": lambda: find_spec("gguf") is not None,
    "the extra objects": lambda: find_spec("obstore") is not None,
}
_COMMENT = re.compile(r"\s+# ")


@dataclass(frozen=True)
class Line:
    """A command of a page, and what it needs."""

    command: str
    needs: str


def lines(text: str) -> list[Line]:
    """The commands of a page's ``text``, without their comments."""
    found = []
    for line in "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines():
        command, comment = (*_COMMENT.split(line, maxsplit=1), "")[:2]
        needs = re.match(r"needs: ([^.]+)", comment)
        found.append(Line(command.strip(), needs[1].strip() if needs else ""))
    return found


def like_a_checkout(folder: Path) -> Path:
    """``folder`` with the checkout's scripts, configs and examples."""
    for name in ("examples", "configs", "scripts", "main.py", "prepare_datasets.py"):
        (folder / name).symlink_to(ROOT / name)
    for path in ROOT.glob("config*.yaml"):
        (folder / path.name).symlink_to(path)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {"PACELINE_CACHE": str(folder / "cache"), "PACELINE_LEDGER": "off", "MPLBACKEND": "Agg"}


def verb(words: list[str], place: Path, extra: dict[str, str] | None = None) -> Run:
    """A verb of ours, in a process that starts warm."""
    argv = [sys.executable, "-m", "paceline.cli.main", *words]
    return run_process(argv, 150, {**environment(place), **(extra or {})}, place)


def in_a_shell(command: str, place: Path, extra: dict[str, str] | None = None) -> Run:
    """As a user types it, with this interpreter's programs first on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**environment(place), "PATH": path, **(extra or {})}
    return run_process(["bash", "-c", command], 560, environ, place)
