"""``paceline chat``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.models import evaluation_options as shared
from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def chat(
    run: RunFolder,
    prompt: Annotated[str | None, typer.Option(help="Answer this one prompt and exit.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    each_alone: Annotated[bool, typer.Option("--forget", help="Answer every line separately.")] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer in tokens [default: the run's generation.max_new_tokens]."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy [default: the run's generation.temperature].")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help=(
                "Sample from the smallest set of tokens with this probability [default: the run's"
                " generation.top_p]."
            )
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Sample from the k most likely tokens, 0 from all [default: the run's generation.top_k]."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling noise [default: another each time].")
    ] = None,
    strategy: shared.Strategy = "copies",
    nproc: shared.Nproc = None,
) -> None:
    """Talk to what a run has trained. RUN may also be one checkpoint or an exported folder."""
    given = {
        "--prompt": prompt,
        "--system": system,
        "--max-new-tokens": max_new_tokens,
        "--temperature": temperature,
        "--top-p": top_p,
        "--top-k": top_k,
        "--seed": seed,
        "--strategy": None if strategy == "copies" else strategy,
        "--nproc": nproc,
    }
    options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    become("paceline.evaluation.chat", str(run), *options, *(["--forget"] if each_alone else []))
