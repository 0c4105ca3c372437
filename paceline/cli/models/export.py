"""``paceline export``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import (
    AlsoGguf,
    ExportDtype,
    Exporter,
    MaxShardSize,
    MergeAdapter,
    ModelRole,
    RunOrUrl,
    WhichCheckpoint,
    export_options,
)
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def export(
    run: RunOrUrl,
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="The folder to write, or hf://owner/name (paceline push)."),
    ],
    dtype: ExportDtype = "float32",
    checkpoint: WhichCheckpoint = "result",
    role: ModelRole = "policy",
    merge: MergeAdapter = False,
    gguf: AlsoGguf = False,
    exporter: Exporter = None,
    max_shard_size: MaxShardSize = "5GB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is not empty.")
    ] = False,
) -> None:
    """Write a run's model as a Hugging Face folder that from_pretrained loads.

    RUN may also be one checkpoint; what a URL names is brought into a folder beside DIR, which is removed
    after. A run with a lora section becomes peft's adapter folder, or with --merge a whole model.
    """
    options = export_options(to, dtype, checkpoint, role, merge, gguf, exporter, max_shard_size, overwrite)
    become("paceline.checkpoint.export.main", "export", run, *options)
