"""Ask another program, in an environment of its own, how it reads a file, tokenizes rows and trains.

``PACELINE_PEERS`` names the folder that holds the environments (``NAME/bin/python``); what is missing is made
there from ``pins/NAME.txt``. Default: ``~/.cache/paceline/peers``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("PACELINE_PEERS") or Path.home() / ".cache/paceline/peers")
PEERS = ("llamafactory", "axolotl", "trl", "swift")
#: parts of wheels from PyPI that need CUDA's libraries where torch is the CPU build: of sound alone
UNFIT = {"llamafactory": ("torchaudio/lib",)}
#: program → repositories and their commits, of no package: newer sources than its release's, or others' code
SOURCES = {
    "llamafactory": {"hiyouga/LLaMA-Factory": "ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30"},
    "swift": {"MoonshotAI/Moonlight": "c2ad5b20c605086526a179d36901bfc41b52b44b"},
    "trl": {
        "allenai/open-instruct": "e6c3044aa6201c8bfa4573c1b03142af599e730d",
        "huggingface/open-r1": "1416fa0cf21595d2083b399a2a0bbddd7f6e9563",
    },
}
#: what a program wants to be told on a machine without accelerator and network
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "DISABLE_VERSION_CHECK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "USE_HF": "1",
}


def is_made(name: str) -> bool:
    """Whether the environment of a program stands there."""
    return (FOLDER / name / "bin/python").exists()


def interpreter(name: str) -> str:
    """Return the Python of a program's environment, which is made if it is missing: minutes, once."""
    python = FOLDER / name / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
        pins = str(HERE / "pins" / f"{name}.txt")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", pins], check=True)
        for folder in UNFIT.get(name, ()):
            shutil.rmtree(next((FOLDER / name).glob(f"lib/*/site-packages/{folder}")))
    return str(python)


def sources(name: str) -> dict[str, str]:
    """Return the variable that names the folder of a program's SOURCES; what is missing is fetched."""
    for repository, commit in SOURCES.get(name, {}).items():
        folder = FOLDER / "sources" / Path(repository).name
        if not folder.exists():
            git = ["git", "-C", str(folder)]
            subprocess.run(["git", "init", "-q", str(folder)], check=True)
            address = f"https://github.com/{repository}"
            subprocess.run([*git, "fetch", "-q", "--depth", "1", address, commit], check=True)
            subprocess.run([*git, "checkout", "-q", commit], check=True)
    return {"PACELINE_SOURCES": str(FOLDER / "sources")}


def torchvision(name: str) -> dict[str, str]:
    """Return the variable with which a program finds torchvision, in a folder of its own: no wheel of it fits
    torch's CPU build, so whoever imports it declares its operators first (``inside/image_trl.py``).
    """
    beside = FOLDER / "torchvision"
    if not beside.exists():
        pip = [interpreter(name), "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*pip, "--target", str(beside), "torchvision==0.28.0"], check=True)
    return {"PYTHONPATH": str(beside)}


def ask(
    name: str,
    verb: str,
    given: Sequence[Any],
    folder: Path,
    timeout: float = 1500,
    variables: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return the program's answer to each of ``given``: ``{"error": …}`` where it refuses.

    ``verb``: ``arguments`` (its own arguments by name), ``tokens`` (rows of ids and labels) or ``losses``.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-ask-") as made:
        question, answer = Path(made) / "question.json", Path(made) / "answer.json"
        question.write_text(json.dumps({"verb": verb, "given": list(given)}), encoding="utf-8")
        script = HERE / "inside" / f"in_{name}.py"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | VARIABLES
        environment |= {**sources(name), **(variables or {})}
        done = subprocess.run(
            [interpreter(name), str(script), str(question), str(answer)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            timeout=timeout,
        )
        if not answer.exists():
            raise RuntimeError(f"{script.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found: list[Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found
