"""What the driver is asked to run: written next to the config, and shipped with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from paceline.core.errors import ConfigError
from paceline.core.files import read_bytes
from paceline.schedulers import codes

FILE = "task.json"
#: Stands for the folder of the shipped files on a node, at the start of an argument.
UNPACKED = "@here@"


@dataclass(frozen=True)
class RayTask:
    """One launcher on each of ``nodes`` nodes, which starts ``nproc`` ranks.

    - ``arguments``: of ``paceline`` on a node, without its rank and address
    - ``folder``: where it starts, on nodes that have it
    - ``run``: the run's directory; ``files``: the job's; ``address``: of the dashboard
    - ``gpus``, ``cpus``: that each node gives; ``port``: on node 0, a free one if None
    - ``secrets``: variable → a file on the nodes; ``signs``: the driver makes the secret of the run
    - ``grace``: seconds from a stop, or another node's failure, to the kill
    """

    nodes: int
    nproc: int
    gpus: int
    cpus: int
    arguments: tuple[str, ...]
    folder: str
    run: str
    files: str
    address: str
    port: int | None
    env: dict[str, str]
    secrets: dict[str, str]
    signs: bool
    max_restarts: int
    grace: float
    placement_timeout: float

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def read(path: Path) -> RayTask:
        """Return the task of a file. Raises ConfigError."""
        try:
            return TypeAdapter(RayTask).validate_json(read_bytes(path))
        except ValidationError as error:
            raise ConfigError(codes.SCHEDULERS_TASK(str(path), str(error)[:300])) from error
