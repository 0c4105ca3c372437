"""``paceline export``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def export(
    run: RunFolder,
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="The folder to write, or hf://owner/name (paceline push)."),
    ],
    dtype: Annotated[str, typer.Option(help="float32 (as trained), bfloat16 or float16.")] = "float32",
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="WHICH", help="latest, best or step-N; result is the one the run's result names."
        ),
    ] = "result",
    role: Annotated[str, typer.Option(help="Which model of the run.")] = "policy",
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Merge a run's adapter into its base model; a run without an adapter is written unchanged.",
        ),
    ] = False,
    gguf: Annotated[
        bool,
        typer.Option(
            "--gguf",
            help="Also write model.gguf (20 families; others are refused by name), read back and compared.",
        ),
    ] = False,
    exporter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also: gguf, or your own as module:function; several times; none [training.exporters].",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is not empty.")
    ] = False,
) -> None:
    """Write a run's model as a Hugging Face folder that from_pretrained loads.

    RUN may also be one checkpoint. A run with a lora section becomes peft's adapter folder, or with --merge a
    whole model.
    """
    options = ["--to", to, "--dtype", dtype, "--checkpoint", checkpoint, "--role", role]
    flags = [
        *(["--merge"] if merge else []),
        *(["--gguf"] if gguf else []),
        *(part for name in exporter or () for part in ("--exporter", name)),
        *(["--overwrite"] if overwrite else []),
    ]
    become("paceline.checkpoint.main", "export", str(run), *options, *flags)
