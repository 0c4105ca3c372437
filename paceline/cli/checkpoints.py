"""``paceline checkpoints list|verify|diff|average|prune|fetch|upload|convert``, ``export`` and ``push``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import AsJson, RunFolder, RunOrUrl, group
from paceline.cli.process import become, words

checkpoints = group("Look after a run's checkpoints.")
_MODULE, _EXPORT = "paceline.checkpoint.main", "paceline.checkpoint.export.main"

# What an export is of and how it is written: of ``export`` and ``push``.
ExportDtype = Annotated[str, typer.Option("--dtype", help="float32 (as trained), bfloat16 or float16.")]
WhichCheckpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="WHICH",
        help="latest, best or step-N; result is the checkpoint that the run's result names.",
    ),
]
ModelRole = Annotated[str, typer.Option("--role", help="Which model of the run.")]
MergeAdapter = Annotated[
    bool,
    typer.Option(
        "--merge",
        help="Merge a run's adapter into its base model; a run without an adapter is written unchanged.",
    ),
]
AlsoGguf = Annotated[
    bool,
    typer.Option(
        "--gguf",
        help="Also write model.gguf (20 families; others are refused by name), read back and compared.",
    ),
]
Exporter = Annotated[
    list[str] | None,
    typer.Option(
        "--exporter",
        metavar="NAME",
        help="Further formats: gguf, or your own as module:function; repeatable; none [training.exporters].",
    ),
]
MaxShardSize = Annotated[
    str,
    typer.Option("--max-shard-size", metavar="SIZE", help="Largest weight file: 5GB, 500MB, 2GiB."),
]


@checkpoints.command("list")
def listed(run: RunOrUrl, as_json: AsJson = False) -> None:
    """List a run's checkpoints: step, size, strategy, age, metric and verdict.

    The verdict is `complete` if every file is there with its size, `verified` for the last fully verified
    one, else the error. At a URL the last commit's checkpoint is `committed`.
    """
    become(_MODULE, "list", run, *words(json=as_json))


@checkpoints.command()
def verify(
    run: RunOrUrl,
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="all, latest or the name of one (step-00000500).")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Read checkpoints whole: every hash, every tensor there, finite and of its shape.

    RUN may also be one checkpoint. At a URL every hash is compared as the bytes arrive, and nothing is kept;
    values and shapes are not checked. The exit code is 1 if one is not sound.
    """
    become(_MODULE, "verify", run, *words(checkpoint=checkpoint, json=as_json))


@checkpoints.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="A checkpoint, or a run (its latest).")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two checkpoints: tensors, how far they moved, and the other state."""
    become(_MODULE, "diff", str(first), str(second), *words(json=as_json))


@checkpoints.command()
def average(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="CHECKPOINT...", help="Checkpoints or runs; or one run with --last."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The Hugging Face folder to write.")],
    last: Annotated[
        int | None, typer.Option(min=2, help="This many of one run's newest checkpoints.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 (as trained), bfloat16 or float16.")] = "float32",
    role: Annotated[str, typer.Option(help="Which model of the runs.")] = "policy",
    merge: Annotated[bool, typer.Option("--merge", help="Merge an adapter into its base model.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is not empty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the mean of several checkpoints' weights as a Hugging Face folder, as export does.

    An adapter's mean is that of its change to the base: the mean of N adapters of rank r has rank N x r.
    Adapters of different bases are refused.
    """
    options = words(to=to, dtype=dtype, role=role, last=last, merge=merge, overwrite=overwrite, json=as_json)
    become(_MODULE, "average", *map(str, paths), *options)


@checkpoints.command()
def prune(
    run: RunFolder,
    keep: Annotated[int, typer.Option(min=1, help="Keep this many of the newest.")],
    every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEPS", help="Also keep each checkpoint whose step is a multiple of this."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints of a run that is not running.

    The best one stays, and the last verified one. First every byte of one that stays is verified; damaged and
    incomplete ones are neither counted nor removed.
    """
    become(_MODULE, "prune", str(run), *words(keep=keep, every=every, dry_run=dry_run, json=as_json))


@checkpoints.command()
def fetch(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="s3://bucket/folder, or one checkpoint: …/step-00000500."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The run directory to bring it into.")],
    as_json: AsJson = False,
) -> None:
    """Download a checkpoint from object storage, and compare every block with its hash.

    Without a step it is the newest. Export, verify and the other verbs then take DIR.
    """
    become(_MODULE, "fetch", url, *words(to=to, json=as_json))


@checkpoints.command()
def upload(
    run: RunFolder,
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's URL: s3://bucket/folder.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="latest, best or the name of one (step-00000500).")
    ] = "latest",
    as_json: AsJson = False,
) -> None:
    """Put a checkpoint of a run that is not running into object storage, as the run itself does.

    For a checkpoint that a stopped run had no time to upload. Every byte of it is verified first; a URL of
    another run, or with a newer checkpoint, is refused, and nothing there is removed.
    """
    become(_MODULE, "upload", str(run), url, *words(checkpoint=checkpoint, json=as_json))


@checkpoints.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Another program's checkpoint folder, or one of ours with --dcp."
        ),
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
        int | None, typer.Option(min=0, help="The finished steps, if the checkpoint does not record them.")
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
    """Convert another program's checkpoint to one that `paceline train --resume DIR` continues from.

    SOURCE is a checkpoint-* folder of Transformers, TRL or LLaMA-Factory; a folder of
    torch.distributed.checkpoint, also Accelerate's pytorch_model_fsdp_0; or DeepSpeed's global_step*, also a
    universal one. Pickles are read without running their code, in a process that can open no file and no
    connection. The report lists what is lost.
    """
    options = words(to=to, model=model, step=step, weights_only=weights_only, dcp=dcp, json=as_json)
    become(_MODULE, "convert", str(source), *options, *words(overwrite=overwrite))


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
    model: Annotated[
        str | None,
        typer.Option(
            metavar="BASE", help="The base model of another program's adapter [default: the one it names]."
        ),
    ] = None,
    gguf: AlsoGguf = False,
    exporter: Exporter = None,
    max_shard_size: MaxShardSize = "5GB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is not empty.")
    ] = False,
) -> None:
    """Write a run's model as a Hugging Face folder that from_pretrained loads.

    RUN may also be one checkpoint; a URL's checkpoint is downloaded into a temporary folder next to DIR. A
    run with a lora section becomes peft's adapter folder, or with --merge a whole model. Another program's
    adapter folder can be RUN, too: --merge adds it to its base model.
    """
    options = words(to=to, dtype=dtype, checkpoint=checkpoint, role=role, max_shard_size=max_shard_size)
    flags = words(model=model, exporter=exporter, merge=merge, gguf=gguf, overwrite=overwrite)
    become(_EXPORT, "export", run, *options, *flags)


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
    """Push a run's model to the Hugging Face hub, in one commit, with a model card that describes the run.

    RUN may also be one checkpoint. The card says base, data, algorithm, settings, losses and plan; no secrets
    and no local paths. Needs a login: hf auth login, or HF_TOKEN.
    """
    options = words(to=to, dtype=dtype, checkpoint=checkpoint, role=role, max_shard_size=max_shard_size)
    flags = words(exporter=exporter, merge=merge, gguf=gguf, overwrite=overwrite, public=public)
    become(_EXPORT, "push", run, *options, *flags)
