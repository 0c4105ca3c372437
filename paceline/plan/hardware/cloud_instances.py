"""Machines that clouds sell by name, such as ``p5.48xlarge`` or ``a3-highgpu-8g``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from paceline.plan.plan_json import shipped_table


@dataclass(frozen=True)
class CloudInstance:
    """One kind of instance: ``cards`` accelerators ``card`` of the catalogue.

    - ``network_gbit``: of the whole instance; None if no fast network between instances is sold with it
    - ``host_memory_gb``: 1e9 bytes
    """

    name: str
    cloud: str
    card: str
    cards: int
    network_gbit: float | None
    host_memory_gb: float
    aliases: tuple[str, ...]

    @property
    def fabric(self) -> float | None:
        """Bytes per second and card, one way, to other instances; None if unknown."""
        return self.network_gbit and self.network_gbit / 8 * 1e9 / self.cards


@dataclass(frozen=True)
class _InstanceTable:
    instances: tuple[CloudInstance, ...]


@cache
def instances() -> Mapping[str, CloudInstance]:
    """Return the table by name."""
    return {row.name: row for row in shipped_table("instances", _InstanceTable).instances}


@cache
def _by_spelling() -> Mapping[str, CloudInstance]:
    return {_plain(word): row for row in instances().values() for word in (row.name, *row.aliases)}


def instance_named(name: str) -> CloudInstance | None:
    """Return an instance by name or alias, ignoring case and separators; None if there is none."""
    return _by_spelling().get(_plain(name))


def spellings() -> Mapping[str, str]:
    """Return every spelling without separators → the instance's name, to find near ones."""
    return {word: row.name for word, row in _by_spelling().items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
