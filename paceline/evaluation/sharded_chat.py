"""One process of a chat with a shared model.

``python -m paceline.evaluation.sharded_chat FOLDER … RANK SIZE``: FOLDER has the weights; … are the arguments
of ``paceline.evaluation.chat``. The first process reads and prints; the others receive each answer's seed and
the prompt's token ids, and compute with it. A process that loses another one ends at once, silently:
``evaluation.processes`` reports the first that failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.evaluation.chat import Answered, chat_options, sampling_options, seeds_of, talk
from paceline.evaluation.processes.rank import own_device
from paceline.evaluation.processes.sharded_model import open_world, shared_model
from paceline.generation.answer import Agree, Sampling, Write, answer_streamed
from paceline.launch.program import EndedBySignal, ended, redacted
from paceline.runtime.failures.root_cause import is_cascade
from paceline.runtime.library_noise import import_without_torchao, quiet_libraries
from paceline.runtime.time_limit import exit_now

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel
    from paceline.runtime.process_group.world import World

_TURNS = "chat/turns"  # in the store: how many prompts (and one end) the first process has announced
_POLL_SECONDS = 0.05


@redacted
def main(argv: Sequence[str] | None = None) -> None:
    """Lead the chat or follow it, then exit; after an error do not wait for the others."""
    folder, *arguments, rank, _ = sys.argv[1:] if argv is None else argv
    code = int(ExitCode.FAILED)
    try:
        code = _take_part(Path(folder), chat_options(arguments), int(rank))
    except BaseException:
        traceback.print_exc()
    exit_now(code)


@ended
def _take_part(folder: Path, options: argparse.Namespace, rank: int) -> int:
    """Return the exit code. The parent process reports signals."""
    import_without_torchao()
    quiet_libraries()
    try:
        sampling = sampling_options(options)
        world = open_world(own_device(rank).type)
        model, tokenizer = shared_model(folder, options.strategy, torch.float32, world)
        if world.is_main:
            talk(tokenizer, options, _leading(model, tokenizer, sampling, options, world))
            _announce(world, None)
        else:
            _follow(model, tokenizer, sampling, world)
        world.close(ok=True)
    except PacelineError as error:
        print(error if rank == 0 else f"[rank {rank}] {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except EndedBySignal as signalled:
        return int(str(signalled.code))
    except RuntimeError as error:
        if not is_cascade(error):
            raise
        return int(ExitCode.PEER_FAILED)
    return int(ExitCode.OK)


def _leading(
    model: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    options: argparse.Namespace,
    world: World,
) -> Answered:
    """Return ``answer_streamed`` together with the other processes, which receive the prompt first."""
    seeds = seeds_of(options)

    def answered(prompt: list[int], write: Write) -> str:
        seed = next(seeds)
        _announce(world, (seed, prompt))
        return answer_streamed(model, tokenizer, prompt, sampling, write, seed=seed, agree=_agree(world))

    return answered


def _follow(model: HFModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, world: World) -> None:
    """Compute the answer to each prompt that the first process sends, until it sends none."""
    turn = 1
    while (announced := _announced(world, turn)) is not None:
        seed, prompt = announced
        with suppress(ConfigError):  # the first process says it
            answer_streamed(
                model, tokenizer, prompt, sampling, lambda _: None, seed=seed, agree=_agree(world)
            )
        turn += 1


def _announce(world: World, answer: tuple[int, list[int]] | None) -> None:
    """Send an answer's seed and its prompt's token ids, or None at the end."""
    assert world.store is not None
    world.store.add(_TURNS, 1)
    world.broadcast_json(answer)


def _announced(world: World, turn: int) -> tuple[int, list[int]] | None:
    """Return what ``_announce`` sends for the ``turn``-th time.

    Waits at the store first: a user may think for longer than a collective's timeout, and a waiting
    collective keeps an accelerator busy.
    """
    assert world.store is not None
    # Adding 0 reads without waiting
    while world.store.add(_TURNS, 0) < turn:
        time.sleep(_POLL_SECONDS)
    answer: tuple[int, list[int]] | None = world.broadcast_json(None)
    return answer


def _agree(world: World) -> Agree:
    """Return a function that gives every process the first one's scores, since different rounding would make
    answers diverge."""
    return lambda scores: world.send_tensor(scores, 0).to(scores.device)


if __name__ == "__main__":
    main()
