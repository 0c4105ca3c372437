"""Chat in the terminal with a trained model.

``python -m paceline.evaluation.chat RUN [--prompt TEXT] [--system TEXT] [--max-new-tokens N] [--temperature
T]``. RUN is a run directory, one of its checkpoints, or a Hugging Face folder. Options that are not given
come from the run's ``generation:`` section. With ``--prompt`` one answer is printed and nothing is read;
otherwise prompts are read from standard input, one per line, also from a pipe.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.evaluation.opened import opened
from paceline.evaluation.prompts import prompts_of
from paceline.generation.answer import Message, Sampling, answer_streamed
from paceline.generation.settings import sampling_of
from paceline.launch.ending import ended
from paceline.launch.outlet import redacted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel

SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k")


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Run the chat; return the exit code. Paceline's errors are printed, not raised."""
    options = _parser().parse_args(None if argv is None else list(argv))
    try:
        sampling = sampling_of(Path(options.run), {name: getattr(options, name) for name in SAMPLING})
        model, tokenizer = opened(Path(options.run))
        model.generation_config.max_length = None
        opening: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
        if options.prompt is not None:
            printed = PrintedAnswer()
            messages: list[Message] = [*opening, {"role": "user", "content": options.prompt}]
            (prompt,) = prompts_of(tokenizer, [messages])
            answer_streamed(model, tokenizer, prompt, sampling, printed.write)
            printed.end()
        else:
            converse(model, tokenizer, opening, sampling, sys.stdin, remember=not options.forget)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline chat", description="Chat with the model that a run has trained."
    )
    parser.add_argument("run", help="a run directory, one of its checkpoints, or an exported folder")
    parser.add_argument("--prompt", help="answer this one prompt and exit")
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
    return parser


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
    model: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    opening: Sequence[Message],
    sampling: Sampling,
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
                (prompt,) = prompts_of(tokenizer, [messages])
                reply = answer_streamed(model, tokenizer, prompt, sampling, printed.write)
            except ConfigError as error:
                print(error, file=sys.stderr)
                continue
            printed.end()
            if remember and interactive:
                history = [*messages, {"role": "assistant", "content": reply}]


if __name__ == "__main__":
    sys.exit(main())
