"""Run the RUN lines of the Dockerfile without docker: ``python scripts/try_dockerfile.py cpu|cuda FOLDER``.

What COPY takes is copied to FOLDER/src, the environment is FOLDER/venv, ENV lines count, and so do ARG lines
where this environment has no value for them. ``apt-get`` is only simulated; with ``--resolve`` pip only
resolves packages (CUDA's are 3 GB). Ends with the code of the first line that fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def instructions(target: str) -> Iterator[tuple[str, str]]:
    """(instruction, its text) of a stage, after those of the stage that it begins from."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages: dict[str, list[tuple[str, str]]] = {}
    stage: list[tuple[str, str]] = []
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, name = re.split(r"\s+AS\s+", rest)
            stage = stages[name] = list(stages.get(base, []))
        elif word and not word.startswith("#"):
            stage.append((word, rest))
    yield from stages[target]


def placed(text: str, folder: Path) -> str:
    """The line with the container's folders below ``folder``."""
    return text.replace("/opt/venv", str(folder / "venv")).replace("/src", str(folder / "src"))


def tried(line: str, folder: Path, *, resolve: bool) -> str:
    """The line as it can be run here."""
    if line.startswith("apt-get"):
        named = re.search(r"install -y --no-install-recommends ([\w +.-]+?) &&", line)
        return f"apt-get install --simulate --no-install-recommends {named[1] if named else ''}"
    if resolve and line.startswith("pip install"):
        line = line.replace("pip install", "pip install --dry-run", 1)
    return placed(line, folder)


def main(target: str, folder: Path, *, resolve: bool) -> int:
    """Run the stage's lines in order."""
    environ, place = dict(os.environ), folder / "src"
    place.mkdir(parents=True)
    for word, text in instructions(target):
        if word == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", placed(text, folder)):
                environ[name] = value.replace("$PATH", environ["PATH"])
        elif word == "ARG":
            name, _, value = text.partition("=")
            environ.setdefault(name, value)
        elif word == "COPY":
            *names, to = text.split()
            for name in names:
                source = ROOT / name
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, place / to if source.is_dir() else place)
        elif word == "RUN":
            line = tried(text, folder, resolve=resolve)
            sys.stdout.write(f"RUN {line}\n")
            sys.stdout.flush()
            if resolve and "paceline " in line and not line.startswith("pip"):
                continue  # nothing was installed
            if code := subprocess.run(["sh", "-c", line], cwd=place, env=environ, check=False).returncode:
                return code
    return 0


if __name__ == "__main__":
    options = [word for word in sys.argv[1:] if not word.startswith("--")]
    sys.exit(main(options[0], Path(options[1]).resolve(), resolve="--resolve" in sys.argv))
