"""What one rank saves: its tensors, and on rank 0 the run's state and the model's side files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.checkpoint import codes
from paceline.checkpoint.manifest_format import HF_FOLDER, STATE, is_safe_name
from paceline.checkpoint.strictjson import dump_object
from paceline.checkpoint.tensorfile import TensorEntry, file_bytes
from paceline.checkpoint.written import TensorPlaces, entries_of, places_of
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json
from paceline.protocols.shard import Shard


@dataclass(frozen=True)
class Contents:
    """``entries`` with ``metadata`` are the rank's shard, ``places`` its part of the index; ``side``: bytes
    of further files by their name in the checkpoint.
    """

    entries: list[TensorEntry]
    metadata: dict[str, str]
    places: TensorPlaces
    side: dict[str, bytes]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        shard = file_bytes(self.entries, self.metadata) if self.entries else 0
        return shard + sum(map(len, self.side.values()))


def contents_of(
    rank: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
) -> Contents:
    """Return what a rank saves; tensors are not copied, state and files are. Collective, as exports are.

    Raises CheckpointError for a state that is not JSON and for a name that is not plain.
    """
    mine = list(shards)  # references only: its collectives end before any error of the disk
    entries, metadata = entries_of(mine)
    side: dict[str, bytes] = {}
    if rank == 0:
        side = {f"{HF_FOLDER}/{name}": content for name, content in files.items()}
        side[STATE] = dump_object(state, STATE)
    for name in side:
        if not is_safe_name(name):
            raise CheckpointError(codes.CHECKPOINT_FILE_NAME(found=name))
    return Contents(entries, metadata, places_of(mine, entries), side)
