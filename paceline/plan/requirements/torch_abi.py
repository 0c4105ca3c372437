"""Packages whose compiled code was made for another torch than the one installed; nothing is imported.

Transformers imports torchvision wherever it is installed, so that one which does not load takes every model
class with it: "Could not import module 'LlamaConfig'".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes

#: those that Transformers imports and that name their torch
IMPORTED = ("torchvision",)
_PINNED = re.compile(r"torch\s*\(?==\s*([0-9][\w.]*)")


@dataclass(frozen=True)
class MadeFor:
    """A package, its version, the torch that it names, and the torch that is installed."""

    package: str
    version: str
    wants: str
    torch: str

    def finding(self) -> Diagnostic:
        """Return what is wrong, and what to do."""
        return codes.PLAN_OTHER_TORCH(
            self.package,
            f"torch {self.torch}",
            package=self.package,
            version=self.version,
            wants=self.wants,
            release=_release(self.torch),
        )


def made_for_another_torch() -> Iterator[MadeFor]:
    """Yield what was made for another minor release: its operators do not load."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return
    for package in IMPORTED:
        try:
            version, requirements = metadata.version(package), metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            continue
        wants = next((found[1] for line in requirements if (found := _PINNED.match(line))), "")
        if wants and _release(wants) != _release(torch):
            yield MadeFor(package, version, wants, torch)


def _release(version: str) -> str:
    """``2.13`` of ``2.13.0+cu130``: patches keep the interface."""
    return ".".join(version.split("+")[0].split(".")[:2])
