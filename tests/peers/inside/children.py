"""Answer a list of questions, each in a forked child: programs set variables, patch classes and end."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Verb = Callable[[Any, str], Any]


def answer(**verbs: Verb) -> None:
    """Read the questions in the first file that the command names, and write the answers into the second.

    A verb takes what is given and a folder for what the program writes; ``every`` is ``tokens`` of a list, in
    one child.
    """
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    each = asked["verb"] != "every"
    verb = verbs[asked["verb"] if each else "tokens"]
    answers = [_in_a_child(verb, [given] if each else given) for given in asked["given"]]
    found = [one[0] if each else one for one in answers]
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


def _in_a_child(verb: Verb, given: list[Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "answers.json"
        child = os.fork()
        if not child:
            made.write_text(json.dumps([_one(verb, one) for one in given], default=str), encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended = {"error": f"ended with {os.waitstatus_to_exitcode(status)}", "kind": "signal"}
        answers: list[Any] = json.loads(made.read_text("utf-8")) if made.exists() else [ended] * len(given)
        return answers


def _one(verb: Verb, given: Any) -> Any:
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
