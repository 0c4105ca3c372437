"""An evaluation or generation job, sent as JSON from the command line to the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from paceline.core.json_types import Json, JsonObject


@dataclass(frozen=True)
class EvaluationJob:
    """One ``paceline evaluate`` or ``paceline generate``.

    models       runs, checkpoints or Hugging Face folders
    data         the data set: a section of ``data.train``
    overrides    ``key=value`` of the sections data, generation and model
    checkpoints  a run's checkpoints: result, latest, best, all or step-N
    losses       whether losses are computed
    metrics      names of metrics of generated answers
    samples      answers a row
    seed         of the sampling noise
    batch_size   rows computed together: the same batches on any number of processes
    nproc        processes; None: one a GPU, one on a CPU
    strategy     copies: each process has the whole model; tp, fsdp: a part of it
    to           the file of generated rows
    judge        a model that scores answers
    """

    models: tuple[str, ...]
    data: JsonObject
    overrides: tuple[str, ...] = ()
    checkpoints: str = "result"
    losses: bool = True
    metrics: tuple[str, ...] = ()
    samples: int = 1
    seed: int = 0
    batch_size: int = 8
    nproc: int | None = None
    strategy: str = "copies"
    dtype: str = "float32"
    to: str | None = None
    overwrite: bool = False
    judge: str | None = None
    judge_prompt: str | None = None

    def to_json(self) -> JsonObject:
        """Return the job as plain JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Json]) -> EvaluationJob:
        """The inverse of ``to_json``."""
        names = {item.name for item in fields(EvaluationJob)}
        read = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content.items()
            if name in names
        }
        return EvaluationJob(**read)  # type: ignore[arg-type]  # what to_json has written
