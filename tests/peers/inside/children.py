"""Answer a list of questions, each in a forked child: programs set variables, patch classes and end."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Verb = Callable[[Any, str], Any]


def answer(**verbs: Verb) -> None:
    """Read the questions in the first file that the command names, and write the answers into the second.

    A verb takes what is given and a folder for what the program writes.
    """
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    questions = [(verbs[asked["verb"]], given) for given in asked["given"]]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = pool.map(_one, questions, chunksize=1)
    Path(sys.argv[2]).write_text(json.dumps(answers, default=str), encoding="utf-8")


def _one(question: tuple[Verb, Any]) -> Any:
    verb, given = question
    with tempfile.TemporaryDirectory() as folder:
        try:
            return verb(given, folder)
        except (Exception, SystemExit) as exc:  # whatever it refuses
            return {"error": (str(exc) or type(exc).__name__)[-800:], "kind": type(exc).__name__}


def fields(arguments: object) -> dict[str, object]:
    """Return the fields of a dataclass that JSON can hold, the others as text."""
    values = {
        field.name: getattr(arguments, field.name, None)
        for field in dataclasses.fields(arguments)  # type: ignore[arg-type]
    }
    return {name: plain(value) for name, value in values.items()}


def plain(value: object) -> object:
    """Return a value as JSON holds it."""
    value = getattr(value, "value", value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else str(value)


def losses_of(log: list[dict[str, Any]]) -> list[float]:
    """Return the losses of a Transformers trainer's log, one a step."""
    return [float(entry["loss"]) for entry in log if "loss" in entry]
