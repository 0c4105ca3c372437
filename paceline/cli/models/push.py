"""``paceline push``."""

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
def push(
    run: RunOrUrl,
    to: Annotated[str, typer.Option("--to", metavar="hf://OWNER/NAME", help="The repository.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public [default: private].")
    ] = False,
    dtype: ExportDtype = "float32",
    checkpoint: WhichCheckpoint = "result",
    role: ModelRole = "policy",
    merge: MergeAdapter = False,
    gguf: AlsoGguf = False,
    exporter: Exporter = None,
    max_shard_size: MaxShardSize = "5GB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a repository that is not empty.")
    ] = False,
) -> None:
    """Push a run's model to the Hugging Face hub, in one commit, with a model card of the run's facts.

    RUN may also be one checkpoint. The card says base, data, algorithm, settings, losses and plan; no secrets
    and no local paths. Needs a login: hf auth login, or HF_TOKEN.
    """
    options = export_options(to, dtype, checkpoint, role, merge, gguf, exporter, max_shard_size, overwrite)
    become("paceline.checkpoint.export.main", "push", run, *options, *(["--public"] if public else []))
