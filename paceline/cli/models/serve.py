"""``paceline serve``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.options import RunFolder
from paceline.cli.process import become
from paceline.core.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
PACKAGES = ("starlette", "uvicorn")


@app.command()
def serve(
    run: RunFolder,
    port: Annotated[
        int | None,
        typer.Option("--port", help="The port on 127.0.0.1 [default: 8766, or a free one if it is in use]."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name in requests [default: the run's name].")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Serve what a run has trained, OpenAI-compatible, for this machine only and behind a key.

    RUN may also be one checkpoint or a Hugging Face folder. What a request leaves open (temperature, top_p,
    top_k, length) is as the run's generation section has it. Chat completions, completions, responses and
    models, as vLLM's server answers them; a conversation is rendered as training renders it.
    """
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ConfigError(codes.CLI_SERVE_PACKAGES(found=", ".join(missing)))
    given = {"--port": port, "--name": name, "--dtype": dtype}
    options = [part for key, value in given.items() if value is not None for part in (key, str(value))]
    become("paceline.evaluation.serve", str(run), *options)
