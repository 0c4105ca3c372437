"""``paceline checkpoints list|verify|diff|average|prune|fetch|upload|convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import RunFolder, RunOrUrl
from paceline.cli.process import become

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Look after a run's checkpoints.",
)
_MODULE = "paceline.checkpoint.main"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def root() -> None:
    """List, verify, compare, average, prune, fetch and upload checkpoints; convert other programs'."""


@app.command("list")
def listed(run: RunOrUrl, as_json: AsJson = False) -> None:
    """List a run's checkpoints: step, size, strategy, age, metric and verdict.

    The verdict is `complete` where every file is there with its size, `verified` for the last one of which
    every byte has been read and found sound, else what is wrong. At a URL it is what the last commit names:
    `committed`.
    """
    become(_MODULE, "list", run, *_json(as_json))


@app.command()
def verify(
    run: RunOrUrl,
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="all, latest or the name of one (step-00000500).")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Read checkpoints whole: every hash, every tensor there, finite and of its shape.

    RUN may also be one checkpoint. At a URL every hash is compared as the bytes arrive, and nothing is kept;
    numbers and shapes are not looked at. The exit code is 1 if one is not sound.
    """
    become(_MODULE, "verify", run, "--checkpoint", checkpoint, *_json(as_json))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="A checkpoint, or a run (its latest).")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Say what differs between two checkpoints: tensors and how far they moved, and the state beside them."""
    become(_MODULE, "diff", str(first), str(second), *_json(as_json))


@app.command()
def average(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="CHECKPOINT...", help="Checkpoints or runs; or one run with --last."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The Hugging Face folder to write.")],
    last: Annotated[int | None, typer.Option(min=2, help="The last so many of one run.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 (as trained), bfloat16 or float16.")] = "float32",
    role: Annotated[str, typer.Option(help="Which model of the runs.")] = "policy",
    merge: Annotated[bool, typer.Option("--merge", help="Merge an adapter into its base model.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is not empty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the mean of several checkpoints' weights as a Hugging Face folder, as export does.

    Adapters are averaged as what they add to their base: the mean of N adapters of rank r has rank N x r.
    Adapters of different bases are refused.
    """
    options = ["--to", str(to), "--dtype", dtype, "--role", role, *(["--last", str(last)] if last else [])]
    flags = [*(["--merge"] if merge else []), *(["--overwrite"] if overwrite else []), *_json(as_json)]
    become(_MODULE, "average", *map(str, paths), *options, *flags)


@app.command()
def prune(
    run: RunFolder,
    keep: Annotated[int, typer.Option(min=1, help="Keep so many of the newest.")],
    every: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Keep each whose step is a multiple of this, too."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints of a run that is not running.

    The best one stays, and the last verified one. One of those that stay is verified first, every byte of it;
    damaged and incomplete ones are neither counted nor removed.
    """
    options = ["--keep", str(keep), *(["--every", str(every)] if every else [])]
    become(_MODULE, "prune", str(run), *options, *(["--dry-run"] if dry_run else []), *_json(as_json))


@app.command()
def fetch(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="s3://bucket/folder, or one checkpoint: …/step-00000500."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The run directory to bring it into.")],
    as_json: AsJson = False,
) -> None:
    """Bring a checkpoint from object storage onto this disk, every block compared with its hash.

    Without a step it is the newest. Export, verify and the other verbs then take DIR.
    """
    become(_MODULE, "fetch", url, "--to", str(to), *_json(as_json))


@app.command()
def upload(
    run: RunFolder,
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's: s3://bucket/folder.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="latest, best or the name of one (step-00000500).")
    ] = "latest",
    as_json: AsJson = False,
) -> None:
    """Put a checkpoint of a run that is not running into object storage, as the run itself does.

    For one that a stopped run had no time for. Every byte of it is verified first; a URL of another run, or
    one that has a newer checkpoint, is refused, and nothing there is removed.
    """
    become(_MODULE, "upload", str(run), url, "--checkpoint", checkpoint, *_json(as_json))


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A foreign checkpoint's folder, or one of ours with --dcp."),
    ],
    to: Annotated[
        Path,
        typer.Option("--to", metavar="DIR", help="The run directory to write into; with --dcp the folder."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder with the model's config.json and tokenizer, if elsewhere."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The finished steps, if the checkpoint does not know them.")
    ] = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Leave the optimizer's state out.")
    ] = False,
    dcp: Annotated[
        bool,
        typer.Option(
            "--dcp", help="The other way: write our checkpoint as a folder of torch.distributed.checkpoint."
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Write where checkpoints are already; with --dcp replace the folder."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of ours of another program's: `paceline train --resume DIR` goes on from it.

    SOURCE is a checkpoint-* folder of Transformers, TRL or LLaMA-Factory; a folder of
    torch.distributed.checkpoint, also Accelerate's pytorch_model_fsdp_0; or DeepSpeed's global_step*, also a
    universal one. Pickles are read without running
    anything of them, in a process that can open no file and no connection. What is not brought over is said.
    """
    options = ["--to", str(to), *(["--model", str(model)] if model else [])]
    options += ["--step", str(step)] if step is not None else []
    flags = [*(["--weights-only"] if weights_only else []), *(["--dcp"] if dcp else []), *_json(as_json)]
    flags += ["--overwrite"] if overwrite else []
    become(_MODULE, "convert", str(source), *options, *flags)


def _json(given: bool) -> list[str]:
    return ["--json"] if given else []
