"""Below the worker nobody reads ``plan.config``: what is needed of it is handed over, or an attribute or
property of the Plan.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sources import Source, sources

BELOW = (
    "protocols",
    "runtime",
    "models",
    "data",
    "strategies",
    "generation",
    "algorithms",
    "checkpoint",
    "training",
    "simulate",
)
#: Files that read it, and why.
OWN = {
    "training/rank_arguments.py": "it gives the worker its config",
    "training/checkpointing/contents.py": "a checkpoint keeps the config of its run, as JSON",
    "training/base_trainer.py": "a user's class is made with a plan alone, and builds its own model",
}


def reads(source: Source) -> Iterator[int]:
    """Lines with ``….plan.config`` or ``plan.config``."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr == "config":
            of = node.value
            if getattr(of, "attr", getattr(of, "id", "")).lstrip("_") == "plan":
                yield node.lineno


def test_below_the_worker_nobody_reads_the_plans_config() -> None:
    found = {}
    for source in sources():
        name = source.path.removeprefix("paceline/")
        if name.startswith(BELOW) and (lines := list(reads(source))):
            found[name] = lines
    assert {name: lines for name, lines in found.items() if name not in OWN} == {}
    assert set(OWN) == found.keys(), "an exception that is none any more"
