"""A folder with the work of an evaluation: rows as tokens, settings, and what each process has done.

Rows are computed in fixed batches of consecutive rows. So every number and every answer is the same on any
number of processes. Each of n processes takes every n-th batch and appends a line for it to its own file. So
finished batches survive a kill.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core.json_types import Json, JsonObject
from paceline.plan.strategies.fsdp import FSDP

LOSSES, ANSWERS = "losses", "answers"
COPIES, SHARED = "copies", ("tp", FSDP.name)


@dataclass(frozen=True)
class WorkSettings:
    """How rows are computed. ``tasks``: LOSSES, ANSWERS or both; ``model``: a Hugging Face folder;
    ``strategy``: COPIES, or how the processes share the model (SHARED). ``images``: what makes the pixels of
    the rows' pictures (``pictures.stored_options``); None where rows have none.
    """

    tasks: tuple[str, ...]
    model: str
    dtype: str
    batch_size: int
    pad_id: int
    stop_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    samples: int
    seed: int
    strategy: str = COPIES
    images: JsonObject | None = None


@dataclass(frozen=True)
class WorkFolder:
    """The work in ``folder``."""

    folder: Path

    def write(self, settings: WorkSettings) -> None:
        """Write the settings."""
        (self.folder / "settings.json").write_text(json.dumps(asdict(settings)), encoding="utf-8")

    def settings(self) -> WorkSettings:
        """Read the settings."""
        stored = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        return WorkSettings(
            **{**stored, "tasks": tuple(stored["tasks"]), "stop_ids": tuple(stored["stop_ids"])}
        )

    def write_rows(self, task: str, documents: Sequence[NDArray[np.int32]], numbers: Sequence[int]) -> None:
        """Write the rows of a task: tokens and row numbers."""
        ends = np.cumsum([0, *(len(document) for document in documents)])
        tokens, rows = np.concatenate(documents), np.array(numbers, np.int64)
        with open(self.folder / f"{task}.npz", "wb") as file:
            np.savez(file, tokens=tokens, ends=ends, numbers=rows)

    def pictures(self, task: str) -> Path:
        """Return the folder of the pictures of a task's rows."""
        return self.folder / f"{task}-pictures"

    def rows(self, task: str) -> tuple[list[NDArray[np.int32]], list[int]]:
        """Read the rows of a task."""
        with np.load(self.folder / f"{task}.npz", allow_pickle=False) as arrays:
            tokens, ends, numbers = arrays["tokens"], arrays["ends"], arrays["numbers"]
        documents = [tokens[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return documents, [int(number) for number in numbers]

    def part(self, task: str, rank: int, world_size: int) -> Path:
        """Return the file to which a process appends its batches."""
        return self.folder / f"{task}-{rank:05d}-of-{world_size:05d}.jsonl"

    def done(self, task: str) -> dict[int, list[Json]]:
        """Return the finished batches: number → the results of its rows.

        An unfinished line of a killed process is ignored.
        """
        by_batch: dict[int, list[Json]] = {}
        for path in sorted(self.folder.glob(f"{task}-*-of-*.jsonl")):
            for line in path.read_bytes().split(b"\n")[:-1]:
                try:
                    batch, results = json.loads(line)
                except (ValueError, TypeError):
                    continue
                by_batch.setdefault(batch, results)
        return by_batch

    def results(self, task: str, num_rows: int, batch_size: int) -> list[Json]:
        """Return the result of every row, in order; each row once."""
        done = self.done(task)
        rows = [result for batch in range(num_batches(num_rows, batch_size)) for result in done[batch]]
        assert len(rows) == num_rows
        return rows


class PartFile:
    """A process's own file of results; a line is written whole and reaches the disk before the next batch."""

    def __init__(self, path: Path) -> None:
        before = path.read_bytes() if path.exists() else b""
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (closed with the process's work)
        if before and not before.endswith(b"\n"):
            self._file.write(b"\n")  # a line that a killed process did not finish

    def append(self, batch: int, results: Sequence[Json]) -> None:
        """Append the results of a batch."""
        self._file.write(json.dumps([batch, list(results)]).encode() + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def num_batches(num_rows: int, batch_size: int) -> int:
    return math.ceil(num_rows / batch_size)


def own_batches(num_rows: int, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[int, slice]]:
    """Yield (number, rows) of the batches of one process."""
    for batch in range(rank, num_batches(num_rows, batch_size), world_size):
        yield batch, slice(batch * batch_size, min((batch + 1) * batch_size, num_rows))
