"""One process of an evaluation: ``python -m paceline.evaluation.processes.rank FOLDER RANK WORLD_SIZE``.

It needs no other process: it computes its batches of the work in FOLDER and appends the results to a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from paceline.runtime.failures.root_cause import is_cascade
from paceline.runtime.library_noise import quiet_libraries, spare_torchao
from paceline.runtime.time_limit import leave

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel

Report = Callable[[str, int, int], None]  # task, rows done, all rows


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Compute this process's batches; return the exit code. After an error nothing waits for the others."""
    folder, rank, world_size = sys.argv[1:] if argv is None else argv
    try:
        compute(WorkFolder(Path(folder)), int(rank), int(world_size))
    except PacelineError as error:
        print(f"[rank {rank}] {error}", file=sys.stderr)
        leave(error.exit_code)
    except RuntimeError as error:
        if not is_cascade(error):
            raise
        print(f"[rank {rank}] another process has ended: {str(error).splitlines()[0]}", file=sys.stderr)
        leave(ExitCode.PEER_FAILED)
    return 0


def compute(work: WorkFolder, rank: int, world_size: int, report: Report = lambda *_: None) -> None:
    """Compute the batches of one process that are not done yet."""
    spare_torchao()
    quiet_libraries(quantised=False)
    settings = work.settings()
    device = own_device(rank)
    if settings.strategy != COPIES:
        from paceline.evaluation.processes.sharded_model import compute_sharded

        compute_sharded(work, device.type, report, row_results)
        return
    hf, tokenizer = load_model(Path(settings.model))
    hf.to(device=device, dtype=getattr(torch, settings.dtype))  # type: ignore[call-arg]  # moves it in place
    hf.generation_config.max_length = None
    losses = RowLosses(hf, settings.pad_id)
    for task in settings.tasks:
        documents, numbers = work.rows(task)
        done = set(work.done(task))
        own = list(own_batches(len(documents), settings.batch_size, rank, world_size))
        with closing(PartFile(work.part(task, rank, world_size))) as part:
            for batch, rows in own:
                if batch not in done:
                    part.append(
                        batch,
                        row_results(task, hf, tokenizer, losses, documents[rows], numbers[rows], settings),
                    )
                report(task, rows.stop, len(documents))


def row_results(
    task: str,
    hf: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    losses: RowLosses,
    documents: Sequence[NDArray[np.int32]],
    numbers: Sequence[int],
    settings: WorkSettings,
    agree: Callable[[bool], bool] | None = None,
) -> list[Json]:
    """Return the results of a batch's rows; ``agree``: of ``LocalEngine``, if a forward is a collective."""
    if task == LOSSES:
        return [list(one) for one in losses(documents)]
    prompts = [tuple(decode_labels(one)[0].tolist()) for one in documents]
    return batch_answers(hf, tokenizer, prompts, numbers, settings, agree)


def batch_answers(
    hf: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[int, ...]],
    numbers: Sequence[int],
    settings: WorkSettings,
    agree: Callable[[bool], bool] | None = None,
) -> list[Json]:
    """Return the answers of each prompt: ``settings.samples`` objects with text, tokens and ended.

    The noise of an answer depends on seed, row and sample alone.
    """
    stops = end_tokens(hf, settings.stop_ids)
    positions = getattr(hf.config, "max_position_embeddings", None)
    engine = LocalEngine(
        hf, pad_id=settings.pad_id, stop_ids=stops, rows=len(prompts) * settings.samples, agree=agree
    )
    requests = [
        Request(
            prompt,
            stream_of(settings.seed, number, sample),
            min(settings.max_new_tokens, (positions or sys.maxsize) - len(prompt)),
        )
        for prompt, number in zip(prompts, numbers, strict=True)
        for sample in range(settings.samples)
    ]
    sampling = RolloutSampling(settings.temperature, settings.top_p, settings.top_k)
    written = engine.generate(requests, sampling)
    made: list[Json] = [
        {
            "text": str(tokenizer.decode(list(one.tokens), skip_special_tokens=True)),
            "tokens": len(one.tokens),
            "ended": one.ended,
        }
        for one in written
    ]
    return [made[at : at + settings.samples] for at in range(0, len(made), settings.samples)]


def own_device(rank: int) -> torch.device:
    """Return the device of one process of this machine: its accelerator, else the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, rank % torch.accelerator.device_count())


if __name__ == "__main__":
    sys.exit(main())
