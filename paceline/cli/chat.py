"""``paceline chat``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def chat(
    run: RunFolder,
    prompt: Annotated[str | None, typer.Option(help="Answer this one prompt and end.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Answer every line by itself.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the smallest set of tokens with this probability.")] = 1.0,
) -> None:
    """Talk to what a run has trained. RUN may also be one checkpoint or an exported folder."""
    options = ["--max-new-tokens", str(max_new_tokens), "--temperature", str(temperature), "--top-p", str(top_p)]
    texts = [
        part for name, text in (("--prompt", prompt), ("--system", system)) if text is not None for part in (name, text)
    ]
    become("paceline.generation.chat", str(run), *texts, *options, *(["--forget"] if forget else []))
