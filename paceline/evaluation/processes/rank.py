"""One process of an evaluation: ``python -m paceline.evaluation.processes.rank FOLDER RANK WORLD_SIZE``.

It needs no other process: it computes its batches of the work in FOLDER and appends the results to a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import ExitCode, PacelineError
from paceline.core.json_types import Json
from paceline.data.token_table import decode_labels
from paceline.evaluation.open_run import load_model
from paceline.evaluation.pictures import WholeModelRows, picture_loader
from paceline.evaluation.processes.work_folder import (
    COPIES,
    LOSSES,
    PartFile,
    WorkFolder,
    WorkSettings,
    own_batches,
)
from paceline.evaluation.scores.row_losses import RowLosses
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.sampling.noise import stream_of
from paceline.launch.program import program
from paceline.models.special_tokens import end_tokens
from paceline.models.vision.whole_model import sees_images
from paceline.runtime.failures.root_cause import is_cascade
from paceline.runtime.library_noise import import_without_torchao, quiet_libraries
from paceline.runtime.time_limit import exit_now

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel
    from paceline.runtime.process_group.world import World

Report = Callable[[str, int, int], None]  # task, rows done, all rows


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Compute this process's batches; return the exit code. After an error nothing waits for the others."""
    folder, rank, world_size = sys.argv[1:] if argv is None else argv
    try:
        compute(WorkFolder(Path(folder)), int(rank), int(world_size))
    except PacelineError as error:
        print(f"[rank {rank}] {error}", file=sys.stderr)
        exit_now(error.exit_code)
    except RuntimeError as error:
        if not is_cascade(error):
            raise
        print(f"[rank {rank}] another process has ended: {str(error).splitlines()[0]}", file=sys.stderr)
        exit_now(ExitCode.PEER_FAILED)
    return 0


def compute(work: WorkFolder, rank: int, world_size: int, report: Report = lambda *_: None) -> None:
    """Compute the batches of one process that are not done yet."""
    import_without_torchao()
    quiet_libraries()
    settings = work.settings()
    device = own_device(rank)
    if settings.strategy != COPIES:
        from paceline.evaluation.processes.sharded_model import open_world, shared_model

        world = open_world(device.type)
        dtype = getattr(torch, settings.dtype)
        vision = settings.images is not None
        hf, tokenizer = shared_model(Path(settings.model), settings.strategy, dtype, world, vision=vision)
        pictured = whole_rows(hf, settings, work) if vision else None
        computer = RowComputer(hf, tokenizer, settings, world.any, pictured)
        compute_batches(work, computer, rank, world_size, report, world)
        world.close(ok=True)
        return
    hf, tokenizer = load_model(Path(settings.model))
    hf.to(device=device, dtype=getattr(torch, settings.dtype))  # type: ignore[call-arg]  # moves it in place
    hf.generation_config.max_length = None
    alone = whole_rows(hf, settings, work) if sees_images(hf) else None
    compute_batches(work, RowComputer(hf, tokenizer, settings, alone=alone), rank, world_size, report)


def whole_rows(hf: HFModel, settings: WorkSettings, work: WorkFolder) -> dict[str, WholeModelRows]:
    """Return by task how a whole model with a tower computes its rows."""
    loaders = {
        task: picture_loader(settings.images, Path(settings.model), work.pictures(task))
        for task in settings.tasks
        if settings.images is not None and work.pictures(task).is_dir()
    }
    return {task: WholeModelRows(hf, settings, loaders.get(task)) for task in settings.tasks}


def compute_batches(
    work: WorkFolder,
    computer: RowComputer,
    rank: int,
    world_size: int,
    report: Report,
    world: World | None = None,
) -> None:
    """Compute the batches of one process that are not done yet.

    The processes of ``world`` share the model: all compute every batch, and the first keeps the results.
    """
    batch_size = computer.settings.batch_size
    keeps = world is None or world.is_main
    for task in computer.settings.tasks:
        documents, numbers = work.rows(task)
        done = sorted(work.done(task))
        done = done if world is None else world.broadcast_json(done)
        # One that shares the model with others computes every batch with them
        share = (rank, world_size) if world is None else (0, 1)
        with closing(PartFile(work.part(task, rank, world_size))) as part:
            for batch, rows in own_batches(len(documents), batch_size, *share):
                if batch not in done:
                    results = computer.compute(task, documents[rows], numbers[rows], rows.start)
                    if keeps:
                        part.append(batch, results)
                if keeps:
                    report(task, rows.stop, len(documents))


class RowComputer:
    """Computes losses or answers of rows with one model.

    ``agree``: of ``LocalEngine``, if a forward is a collective; ``alone``: of a whole model with a tower.
    """

    def __init__(
        self,
        hf: HFModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: WorkSettings,
        agree: Callable[[bool], bool] | None = None,
        alone: Mapping[str, WholeModelRows] | None = None,
    ) -> None:
        self.settings, self._alone = settings, alone or {}
        self._hf, self._tokenizer, self._agree = hf, tokenizer, agree
        self._losses = RowLosses(hf, settings.pad_id)

    def compute(
        self, task: str, documents: Sequence[NDArray[np.int32]], numbers: Sequence[int], first: int
    ) -> list[Json]:
        """Return the result of each row: its loss, or its answers. ``first``: the number of the first."""
        if (whole := self._alone.get(task)) is not None:
            return [
                self._of_whole(task, whole, row, document, number)
                for row, (document, number) in enumerate(zip(documents, numbers, strict=True), first)
            ]
        if task == LOSSES:
            return [list(loss) for loss in self._losses(documents)]
        return self.answers([tuple(decode_labels(document)[0].tolist()) for document in documents], numbers)

    def _of_whole(
        self, task: str, whole: WholeModelRows, row: int, document: NDArray[np.int32], number: int
    ) -> Json:
        ids, labels = decode_labels(document)
        if task == LOSSES:
            return list(whole.loss(row, ids, labels))
        return [
            {"text": self._text(tokens), "tokens": len(tokens), "ended": ended}
            for tokens, ended in whole.answers(row, ids, number)
        ]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def answers(self, prompts: Sequence[tuple[int, ...]], numbers: Sequence[int]) -> list[Json]:
        """Return the answers of each prompt: ``settings.samples`` objects with text, tokens and ended.

        The noise of an answer depends on seed, row and sample alone.
        """
        settings = self.settings
        engine = LocalEngine(
            self._hf,
            pad_id=settings.pad_id,
            stop_ids=end_tokens(self._hf, settings.stop_ids),
            rows=len(prompts) * settings.samples,
            agree=self._agree,
        )
        positions = getattr(self._hf.config, "max_position_embeddings", None) or sys.maxsize
        requests = [
            Request(
                prompt,
                stream_of(settings.seed, number, sample),
                min(settings.max_new_tokens, positions - len(prompt)),
            )
            for prompt, number in zip(prompts, numbers, strict=True)
            for sample in range(settings.samples)
        ]
        sampling = RolloutSampling(settings.temperature, settings.top_p, settings.top_k)
        answers: list[Json] = [
            {
                "text": self._text(completion.tokens),
                "tokens": len(completion.tokens),
                "ended": completion.ended,
            }
            for completion in engine.generate(requests, sampling)
        ]
        return [answers[n : n + settings.samples] for n in range(0, len(answers), settings.samples)]


def own_device(rank: int) -> torch.device:
    """Return the device of one process of this machine: its accelerator, else the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, rank % torch.accelerator.device_count())


if __name__ == "__main__":
    sys.exit(main())
