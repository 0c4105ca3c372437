"""``python -m paceline.checkpoint.export.main export|push RUN --to DIR|hf://OWNER/NAME [--dtype D]
[--checkpoint latest|best|step-N] [--merge] [--gguf] [--exporter NAME] [--max-shard-size SIZE] [--public]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from paceline.checkpoint import codes
from paceline.checkpoint.export.exporters import Exporters, exporters_of
from paceline.checkpoint.format.durable_files import make_folder
from paceline.checkpoint.format.manifest import MANIFEST
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.format.verify_files import is_step_name, read_hint, scan, step_name
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.config.registries.object_store_url import ObjectUrl, is_url, parse_url
from paceline.core.diagnostics import Diagnostic, render_all
from paceline.core.errors import CheckpointError, ConfigError, ExitCode
from paceline.core.files import MAX_JSON_BYTES, read_run_file
from paceline.core.rundir import RunDir
from paceline.core.units import bytes_of, human_bytes, human_count
from paceline.launch.program import program
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from paceline.checkpoint.export.hf_export import ExportReport

_ABOUT = {
    "model": "a complete model",
    "adapter": "a peft adapter without its base model (--merge writes a complete model)",
    "merged model": "a complete model, with the adapter merged into its base",
}


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Export a checkpoint; return the exit code (``core.errors.ExitCode``)."""
    args = _parser().parse_args(argv)
    notes: list[Diagnostic] = []
    pushes = args.verb == "push" or args.to.startswith("hf:")
    with ExitStack() as stack:
        if is_url(args.run):
            checkpoint = stack.enter_context(_fetched(args, pushes, notes))
        elif _is_adapter_folder(Path(args.run).expanduser()):
            checkpoint = stack.enter_context(_adapter(args, pushes))
        elif args.model is not None:
            raise ConfigError(
                codes.EXPORT_NO_CHECKPOINT(
                    "a run records its base model: --model is for another program's adapter folder",
                    "--model",
                    args.model,
                    "leave it out",
                )
            )
        else:
            checkpoint = choose(Path(args.run), args.checkpoint, notes)
        if notes:
            print(render_all(notes), file=sys.stderr)
        exporters = exporters_of(args.exporter, checkpoint)
        exporters = replace(exporters, gguf=exporters.gguf or args.gguf)
        (_push if pushes else _export)(checkpoint, args, exporters)
    return int(ExitCode.OK)


def _is_adapter_folder(folder: Path) -> bool:
    """Whether a folder is peft's, and neither a run of ours nor one of its checkpoints."""
    ours = (folder / MANIFEST).is_file() or RunDir.at(folder).checkpoints.is_dir()
    return not ours and (folder / "adapter_config.json").is_file()


def _adapter(args: argparse.Namespace, pushes: bool) -> AbstractContextManager[Path]:
    """Return the checkpoint of another program's adapter folder, which is merged. Raises ConfigError."""
    from paceline.checkpoint.convert.peft_folder import adapter_checkpoint
    from paceline.checkpoint.export.hf_folder import check_destination

    folder, to = Path(args.run).expanduser().absolute(), Path(args.to).expanduser().absolute()
    if pushes or not args.merge:
        command = f"paceline export {quote(args.run)} --merge --model BASE --to DIR"
        raise ConfigError(
            codes.EXPORT_NO_CHECKPOINT(
                "this is another program's adapter: what is done with it here is to merge it",
                args.run,
                hint=f"{command}{'; the hub takes that folder (hf upload)' if pushes else ''}",
            )
        )
    check_destination(to, args.overwrite)
    if folder.resolve().is_relative_to(to.resolve()):
        raise ConfigError(
            codes.EXPORT_DESTINATION(
                "the adapter is there, which the export reads", "--to", args.to, "give another folder"
            )
        )
    make_folder(to.parent)
    return adapter_checkpoint(folder, args.model, to.parent)


@contextmanager
def _fetched(args: argparse.Namespace, pushes: bool, notes: list[Diagnostic]) -> Iterator[Path]:
    """Download the checkpoint at a URL and yield its folder, which is removed at the end. The folder lies
    next to the export; for a push it lies in the system's temporary folder. Every block's hash has been
    compared.
    """
    from paceline.checkpoint.export.hf_folder import check_destination
    from paceline.checkpoint.object_store.obstore_backend import open_store
    from paceline.checkpoint.object_store.transfer import download_named

    url, beside = url_of(args.run), None
    if args.checkpoint not in ("result", "latest"):
        step = args.checkpoint.removeprefix("step-")
        if url.step is not None or not (step.isascii() and step.isdigit()):
            raise ConfigError(
                codes.EXPORT_NO_CHECKPOINT(
                    "a URL has the newest, or a step",
                    "--checkpoint",
                    args.checkpoint,
                    f"{url}/step-00000500, without --checkpoint",
                )
            )
        url = replace(url, step=step_name(int(step)))
    if not pushes:
        to = Path(args.to).expanduser().absolute()
        check_destination(to, args.overwrite)
        beside = to.parent
        make_folder(beside)
    with tempfile.TemporaryDirectory(prefix=".paceline-fetched-", dir=beside) as folder:
        brought = download_named(open_store(url), url, RunDir.at(folder).checkpoints)
        notes += brought.notes
        yield brought.path


def url_of(text: str) -> ObjectUrl:
    """Return the URL that an argument names. Raises ConfigError."""
    try:
        return parse_url(text)
    except ValueError as wrong:
        raise ConfigError(
            rules_codes.SAVE_CHECKPOINT_URL(
                f"this URL cannot be used: {wrong}",
                "URL",
                hint="s3://bucket/folder, or s3://bucket/folder/step-00000500",
            )
        ) from None


def _export(checkpoint: Path, args: argparse.Namespace, exporters: Exporters) -> None:
    from paceline.checkpoint.export.hf_export import export_hf

    report = export_hf(
        checkpoint,
        Path(args.to).expanduser().absolute(),
        args.dtype,
        role=args.role,
        overwrite=args.overwrite,
        merge=args.merge,
        exporters=exporters,
        max_shard_bytes=shard_bytes(args.max_shard_size),
        verified=True,
    )
    own = _is_adapter_folder(Path(args.run).expanduser())
    title = Path(args.run).name if own else f"{checkpoint.name} (step {report.step})"
    _print(title, report, f"exported to {report.path}")


def _push(checkpoint: Path, args: argparse.Namespace, exporters: Exporters) -> None:
    from paceline.checkpoint.export.push_to_hub import push

    done = push(
        checkpoint,
        args.to,
        args.dtype,
        role=args.role,
        merge=args.merge,
        exporters=exporters,
        overwrite=args.overwrite,
        max_shard_bytes=shard_bytes(args.max_shard_size),
        verified=True,
        public=args.public,
    )
    seen = "private: only its owner sees it" if done.private else "public: everybody sees it"
    _print(f"{checkpoint.name} (step {done.export.step})", done.export, f"pushed to {done.repo} ({seen})")
    if done.removed:
        print(f"no longer there, but in its history: {', '.join(done.removed)}")
    print(done.url)


def _print(title: str, report: ExportReport, where: str) -> None:
    """Print the report on an exported checkpoint or adapter."""
    beside = f" (and {report.num_carried} copied unchanged from the base)" if report.num_carried else ""
    checked = "reopened and compared" if report.load_checked else "not loaded back: it needs its own code"
    print(f"{title} {where}: {_ABOUT[report.kind]}")
    print(
        f"{report.num_tensors} tensors{beside}, {human_count(report.num_parameters)} parameters,"
        f" {report.dtype}, {human_bytes(report.num_bytes)}; {checked}"
    )
    if report.base_bits:
        print(f"merged into the base as it was trained on: rounded to {report.base_bits} bits, dequantised")
    if report.init:
        print(
            f"it began with a part of the base weights ({report.init}), which peft takes out of them when it"
            " loads it; programs that do not (vLLM) need the model that --merge writes"
        )


def shard_bytes(text: str) -> int:
    """Return the bytes of ``--max-shard-size``. Raises ConfigError."""
    with suppress(ValueError):
        if (count := bytes_of(text)) > 0:
            return count
    raise ConfigError(codes.EXPORT_SHARD_SIZE("--max-shard-size", text))


def choose(run: Path, which: str, notes: list[Diagnostic]) -> Path:
    """Return the verified checkpoint that ``which`` selects in ``run``; ``run`` may itself be a checkpoint.

    ``result``: the one named by result.json (the best, if the run kept it), else the latest. Raises
    CheckpointError and ConfigError.
    """
    run_dir = RunDir.at(run)
    if not run.exists():
        raise CheckpointError(
            codes.EXPORT_NO_CHECKPOINT(
                "there is no such folder",
                str(run),
                hint="give a run directory such as outputs/demo, or a checkpoint in it",
            )
        )
    if not run_dir.checkpoints.is_dir():
        checkpoint = find_checkpoint(str(run), run_dir, notes)
    elif which == "result":
        best = _named_by_result(run_dir)
        checkpoint = find_checkpoint(str(best) if best is not None else "auto", run_dir, notes)
    elif which == "latest":
        checkpoint = find_checkpoint("auto", run_dir, notes)
    else:
        checkpoint = find_checkpoint(str(_step(run_dir, which)), run_dir, notes)
    if checkpoint is None:
        raise CheckpointError(
            codes.EXPORT_NO_CHECKPOINT(
                "this run has saved no checkpoint",
                str(run_dir.checkpoints),
                hint="wait for the first save, or train again with training.save_strategy: steps",
            )
        )
    return checkpoint


def _step(run: RunDir, which: str) -> Path:
    name = read_hint(run.checkpoints / "best") if which == "best" else which
    if name is None:
        raise CheckpointError(codes.EXPORT_NO_BEST(str(run.checkpoints)))
    number = name.removeprefix("step-")
    if number.isascii() and number.isdigit() and is_step_name(run.checkpoint(int(number)).name):
        path = run.checkpoint(int(number))
        if path.is_dir():
            return path
    there = ", ".join(f.name for f in scan(run.checkpoints)) or "none"
    raise ConfigError(
        codes.EXPORT_NO_CHECKPOINT(
            "there is no such checkpoint", "--checkpoint", which, f"latest, best, or one of: {there}"
        )
    )


def _named_by_result(run: RunDir) -> Path | None:
    try:
        data = parse_object(
            read_run_file(run.result_json).encode(), str(run.result_json), max_bytes=MAX_JSON_BYTES
        )
    except (OSError, CheckpointError):
        return None
    name = Path(str(data.get("checkpoint") or "")).name
    path = run.checkpoints / name
    return path if is_step_name(name) and path.is_dir() else None


_FLAG = {"action": "store_true"}
_ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "verb": {"choices": ["export", "push"]},
    "run": {"help": "a run directory or a checkpoint, or the URL of one"},
    "--to": {"required": True, "metavar": "DIR", "help": "the folder to write, or hf://owner/name"},
    "--public": {**_FLAG, "help": "make a new repository public"},
    "--dtype": {"default": "float32", "help": "float32 (as trained), bfloat16 or float16"},
    "--checkpoint": {
        "default": "result",
        "metavar": "WHICH",
        "help": "latest, best or step-N [the one the run's result names]",
    },
    "--role": {"default": "policy", "help": "which model of the run"},
    "--model": {"metavar": "BASE", "help": "of another program's adapter folder: its base model"},
    "--merge": {**_FLAG, "help": "merge the adapter into its base: writes a complete model"},
    "--gguf": {**_FLAG, "help": "also write model.gguf"},
    "--exporter": {
        "action": "append",
        "metavar": "NAME",
        "help": "gguf, none, or module:function; several times",
    },
    "--max-shard-size": {"default": "5GB", "metavar": "SIZE", "help": "of a file of weights"},
    "--overwrite": {**_FLAG, "help": "replace a folder that is not empty"},
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline export", description=__doc__, allow_abbrev=False)
    for name, options in _ARGUMENTS.items():
        parser.add_argument(name, **options)
    return parser


if __name__ == "__main__":
    sys.exit(main())
