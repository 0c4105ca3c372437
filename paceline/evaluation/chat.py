"""Chat in the terminal with a trained model.

``python -m paceline.evaluation.chat RUN [--prompt TEXT] [--image FILE] [--system TEXT] [--max-new-tokens N]
[--temperature T]``. RUN is a run directory, one of its checkpoints, or a Hugging Face folder. Options that
are not given come from the run's ``generation:`` section. With ``--prompt`` one answer is printed and nothing
is read; otherwise prompts are read from standard input, one per line, also from a pipe.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.evaluation import codes
from paceline.evaluation.job_checks import sharing_problems
from paceline.evaluation.open_run import load_model, model_folder
from paceline.evaluation.processes.ranks import failure, number_of_ranks, run_ranks
from paceline.evaluation.processes.sharded_model import check_shareable
from paceline.evaluation.processes.work_folder import COPIES
from paceline.evaluation.prompts import default_system, prompts_of
from paceline.generation.answer import Message, Sampling, Write, answer_streamed
from paceline.generation.settings import sampling_of
from paceline.launch.program import program

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k")
Render = Callable[[Sequence[Message]], list[int]]
Answered = Callable[[list[int], Write], str]  # to a prompt's token ids; written as it comes


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the chat; return the exit code. Paceline's errors are printed, not raised."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = chat_options(arguments)
    try:
        sampling = sampling_options(options)
        if options.strategy != COPIES:
            return answer_shared(options, arguments)
        answer_alone(options, sampling)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def answer_alone(options: argparse.Namespace, sampling: Sampling) -> None:
    """Chat with a model that this process holds, about pictures if there are any. Raises PacelineError."""
    with ExitStack() as needed:
        folder = needed.enter_context(model_folder(Path(options.run)))
        model, tokenizer = load_model(folder)
        model.generation_config.max_length = None
        seeds, pictures = seeds_of(options), None
        if options.image:
            from paceline.evaluation.picture_chat import PictureChat

            scratch = Path(needed.enter_context(tempfile.TemporaryDirectory(prefix="paceline-chat-")))
            files = [Path(name).expanduser() for name in options.image]
            pictures = PictureChat(model, folder, Path(options.run), scratch, files)
        else:
            needed.close()  # the weights are in memory

        def answered(prompt: list[int], write: Write) -> str:
            beside = {} if pictures is None else pictures.given
            return answer_streamed(model, tokenizer, prompt, sampling, write, seed=next(seeds), beside=beside)

        talk(tokenizer, options, answered, None if pictures is None else pictures.render)


def talk(
    tokenizer: PreTrainedTokenizerBase,
    options: argparse.Namespace,
    answered: Answered,
    render: Render | None = None,
) -> None:
    """Answer the prompt in the options, or each prompt from standard input. Raises ConfigError.

    ``render``: conversation -> its token ids; None: by the tokenizer's template.
    """
    render = render or (lambda messages: prompts_of(tokenizer, [messages])[0])
    system = options.system or default_system(Path(options.run))
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    if options.prompt is None:
        converse(render, opening, answered, sys.stdin, remember=not options.forget)
        return
    prompt = render([*opening, {"role": "user", "content": options.prompt}])
    printed = PrintedAnswer()
    answered(prompt, printed.write)
    printed.end()


def answer_shared(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Chat with a model that several processes share; return the exit code. Raises PacelineError."""
    if problems := sharing_problems(options.strategy, options.nproc):
        raise ConfigError(*problems)
    if options.image:
        message = "a model that reads pictures is held by one process"
        raise ConfigError(codes.EVALUATION_JOB(message, "--strategy", options.strategy, "--strategy copies"))
    world_size = number_of_ranks(options.nproc)
    with model_folder(Path(options.run), straight=False) as folder:
        check_shareable(folder, options.strategy, world_size)
        failed = run_ranks(
            "paceline.evaluation.sharded_chat", [str(folder), *arguments], world_size, meets=True, talks=True
        )
    if failed is None:
        return int(ExitCode.OK)
    rank, code = failed
    if rank == 0 and code > 0:
        return code  # it has said why
    raise failure(rank, code, world_size)


def seeds_of(options: argparse.Namespace) -> Iterator[int]:
    """Return the seed of each answer's sampling noise: consecutive numbers, from the option or a random
    start."""
    # Halved: there is room to count up within 64 bits
    return itertools.count(torch.seed() >> 1 if options.seed is None else options.seed)


def sampling_options(options: argparse.Namespace) -> Sampling:
    """Return the sampling settings. Raises ConfigError."""
    return sampling_of(Path(options.run), {name: getattr(options, name) for name in SAMPLING})


def chat_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a chat."""
    parser = argparse.ArgumentParser(
        prog="paceline chat", description="Chat with the model that a run has trained."
    )
    parser.add_argument("run", help="a run directory, one of its checkpoints, or an exported folder")
    parser.add_argument("--prompt", help="answer this one prompt and exit")
    parser.add_argument("--image", action="append", help="a picture of the first prompt; repeat for more")
    parser.add_argument("--system", help="a system message to begin with")
    parser.add_argument(
        "--forget", action="store_true", help="answer every line separately, without the earlier conversation"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, help="options left out come from the run's generation section"
    )
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int, help="0: all tokens")
    parser.add_argument("--seed", type=int, help="of the sampling noise [default: another each time]")
    parser.add_argument("--strategy", default=COPIES, help="tp or fsdp: processes share the model")
    parser.add_argument("--nproc", type=int, help="processes that share it [default: one a GPU]")
    return parser.parse_args(list(arguments))


class PrintedAnswer:
    """An answer on the terminal, printed as it comes, behind a ``mark``."""

    def __init__(self, mark: str = "") -> None:
        self._mark = mark

    def write(self, text: str) -> None:
        """Print a part; the text's own line ends stay."""
        print(f"{self._mark}{text}", end="", flush=True)
        self._mark = ""

    def end(self) -> None:
        print(self._mark, flush=True)


def converse(
    render: Render,
    opening: Sequence[Message],
    answered: Answered,
    source: TextIO,
    *,
    remember: bool,
) -> None:
    """Read prompts until the end of ``source``, ``/quit`` or Ctrl-D.

    Errors are printed and the chat continues.
    """
    interactive = source.isatty()
    if interactive:
        print("Write a prompt and press Enter. /new starts a new conversation, /quit or Ctrl-D ends.")
    history = list(opening)
    while True:
        if interactive:
            print("you> ", end="", flush=True)
        # An empty line is skipped; the end of input, or /quit, ends the chat.
        line = source.readline()
        text = line.strip()
        if not line or text == "/quit":
            return
        if text == "/new":
            history = list(opening)
        elif text:
            messages = [*history, {"role": "user", "content": text}]
            printed = PrintedAnswer("model> " if interactive else "")
            try:
                reply = answered(render(messages), printed.write)
            except PacelineError as error:
                print(error, file=sys.stderr)
                continue
            printed.end()
            if remember and interactive:
                history = [*messages, {"role": "assistant", "content": reply}]


if __name__ == "__main__":
    sys.exit(main())
