"""``paceline push``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def push(
    run: RunFolder,
    to: Annotated[str, typer.Option("--to", metavar="hf://OWNER/NAME", help="The repository.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public [default: private].")
    ] = False,
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
        typer.Option("--merge", help="Merge a run's adapter into its base model [default: the adapter]."),
    ] = False,
    gguf: Annotated[bool, typer.Option("--gguf", help="Also write model.gguf.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a repository that is not empty.")
    ] = False,
) -> None:
    """Push a run's model to the Hugging Face hub, in one commit, with a model card of the run's facts.

    RUN may also be one checkpoint. The card says base, data, algorithm, settings, losses and plan; no secrets
    and no local paths. Needs a login: hf auth login, or HF_TOKEN.
    """
    options = ["--to", to, "--dtype", dtype, "--checkpoint", checkpoint, "--role", role]
    flags = {"--public": public, "--merge": merge, "--gguf": gguf, "--overwrite": overwrite}
    given = [name for name, value in flags.items() if value]
    become("paceline.checkpoint.main", "push", str(run), *options, *given)
