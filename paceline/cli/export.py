"""``paceline export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def export(
    run: RunFolder,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder to write.")],
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
) -> None:
    """Write a run's latest checkpoint as a Hugging Face folder that from_pretrained loads. RUN may also be one checkpoint."""
    become("paceline.checkpoint.main", "export", str(run), "--to", str(to), *(["--dtype", dtype] if dtype else []))
