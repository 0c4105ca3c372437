"""``python -m paceline.checkpoint.main list|verify|diff|average|prune|fetch|upload|convert …``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.checkpoint import codes
from paceline.checkpoint.commands.prune import thin
from paceline.checkpoint.export.main import choose, url_of
from paceline.checkpoint.format.durable_files import make_folder, named_errors
from paceline.checkpoint.format.folder_layout import is_step_name, scan
from paceline.checkpoint.format.manifest import MANIFEST
from paceline.checkpoint.load.list_checkpoints import as_table, list_checkpoints
from paceline.checkpoint.save.retention import RetentionRule, being_read, mark_verified
from paceline.config.registries.object_store_url import STORES, is_url
from paceline.core.diagnostics import Diagnostic, render_all
from paceline.core.errors import BusyError, CheckpointError, ConfigError, ExitCode
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
from paceline.launch.claim_run_dir import in_use
from paceline.launch.program import program
from paceline.rules import codes as rules_codes


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code (``core.errors.ExitCode``)."""
    args = _parser().parse_args(argv)
    return _VERBS[args.verb](args)


def _list(args: argparse.Namespace) -> int:
    if is_url(args.run):
        from paceline.checkpoint.object_store.commands import list_stored
        from paceline.checkpoint.object_store.obstore_backend import open_store

        url = url_of(args.run)
        rows = list_stored(open_store(url), url)
    else:
        rows = list_checkpoints(Path(args.run))
    if not rows:
        raise ConfigError(_none(args.run))
    _answer(args, {"checkpoints": [row.to_json() for row in rows]}, lambda: as_table(rows))
    return int(ExitCode.OK)


def _verify(args: argparse.Namespace) -> int:
    if is_url(args.run):
        return _verify_stored(args)
    from paceline.checkpoint.commands.verify import examine

    paths = _named(Path(args.run), args.checkpoint)
    found = []
    for path in paths:
        with ExitStack() as stack:
            with suppress(CheckpointError):  # no manifest (any more): it is examined all the same
                stack.enter_context(being_read(path))
            one = examine(path)
        if one.found and len(paths) > 1 and not path.exists():
            print(f"{path.name}: removed meanwhile", file=sys.stderr)  # by the run, which keeps the last ones
            continue
        found.append(one)
        if not one.found:
            mark_verified(path)
        if not args.json:
            print(
                f"{path.name}: sound: {one.num_tensors} tensors, {human_bytes(one.num_bytes)}, every hash"
                if not one.found
                else f"{path.name}: NOT sound\n{render_all(one.found)}",
                flush=True,
            )
    if not found:
        raise ConfigError(_none(args.run))
    if args.json:
        print(json.dumps({"checkpoints": [one.to_json() for one in found]}, indent=1))
    return int(ExitCode.FAILED if any(one.found for one in found) else ExitCode.OK)


def _verify_stored(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.commands import verdicts
    from paceline.checkpoint.object_store.obstore_backend import open_store

    url, found = url_of(args.run), []
    for one in verdicts(open_store(url), url, args.checkpoint):
        found.append(one)
        if not args.json:
            sound = f"{one.where}: every hash is right: {human_bytes(one.num_bytes)}; no number was looked at"
            print(sound if not one.found else f"{one.where}: NOT sound\n{render_all(one.found)}", flush=True)
    if args.json:
        print(json.dumps({"checkpoints": [one.to_json() for one in found]}, indent=1))
    return int(ExitCode.FAILED if any(one.found for one in found) else ExitCode.OK)


def _diff(args: argparse.Namespace) -> int:
    from paceline.checkpoint.commands.diff import compare
    from paceline.checkpoint.load.reader import CheckpointReader

    paths = [_one(path) for path in (args.first, args.second)]
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(being_read(path))
        first, second = (stack.enter_context(CheckpointReader(path)) for path in paths)
        found = compare(first, second)
    _answer(args, found.to_json(), found.as_text)
    return int(ExitCode.OK)


def _prune(args: argparse.Namespace) -> int:
    _on_disk(args.run)
    run = RunDir.at(args.run)
    if not run.checkpoints.is_dir():
        raise ConfigError(_none(args.run))
    try:
        with FileLock(run.lock, timeout=0):
            found = thin(run.checkpoints, RetentionRule(args.keep, args.every), dry=args.dry_run)
    except Timeout:
        raise BusyError(in_use(run)) from None
    word = "would be removed" if args.dry_run else "removed"
    lines = [f"{name}: {word}" for name in found.removed]
    lines += [f"{name}: kept: {why}" for name, why in found.kept.items()]
    lines.append(f"{human_bytes(found.num_bytes)} {'would be ' if args.dry_run else ''}freed")
    _answer(args, found.to_json(), lambda: "\n".join(lines))
    return int(ExitCode.OK)


def _fetch(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.download import bring_named
    from paceline.checkpoint.object_store.obstore_backend import open_store

    url, run = url_of(args.url), RunDir.at(args.to)
    make_folder(run.root)
    try:
        with FileLock(run.lock, timeout=0):
            brought = bring_named(open_store(url), url, run.checkpoints)
    except Timeout:
        raise BusyError(in_use(run)) from None
    if brought.notes:
        print(render_all(brought.notes), file=sys.stderr)
    _answer(args, {"path": str(brought.path)}, lambda: str(brought.path))
    return int(ExitCode.OK)


def _upload(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.commands import send

    url, run, notes = url_of(args.url), RunDir.at(args.run), list[Diagnostic]()
    if url.step is not None:
        what, hint = "this URL names one checkpoint", f"give the run's: {url}"
        raise ConfigError(rules_codes.SAVE_CHECKPOINT_URL(what, "URL", url.step, hint))
    if not run.checkpoints.is_dir():
        raise ConfigError(_none(args.run))
    try:
        with FileLock(run.lock, timeout=0), named_errors(run.root, "the checkpoint cannot be uploaded"):
            path = choose(args.run, args.checkpoint, notes)
            found = send(path, run, url)
    except Timeout:
        raise BusyError(in_use(run)) from None
    if notes or found:
        print(render_all([*notes, *found]), file=sys.stderr)
    where = f"{url}/{path.name}"
    words = f"{where}{'' if found else ' is there already'}"
    _answer(args, {"url": where, "uploaded": bool(found)}, lambda: words)
    return int(ExitCode.OK)


def _average(args: argparse.Namespace) -> int:
    from paceline.checkpoint.commands.average import AveragedReader
    from paceline.checkpoint.export.hf_export import export_hf

    paths = [_one(path) for path in args.paths]
    if args.last is not None and len(paths) == 1:
        folder = RunDir.at(args.paths[0]).checkpoints
        paths = [found.path for found in scan(folder) if found.problem is None][-args.last :]
    if len(paths) < 2:
        what, hint = "an average needs two checkpoints or more", "give several, or one run and --last N"
        raise ConfigError(codes.EXPORT_NO_CHECKPOINT(what, "", str(len(paths)), hint))
    with ExitStack() as stack:
        for path in paths[1:]:  # the export holds the first
            stack.enter_context(being_read(path))
        report = export_hf(
            paths[0],
            args.to.expanduser().absolute(),
            args.dtype,
            role=args.role,
            overwrite=args.overwrite,
            merge=args.merge,
            opened=lambda _: AveragedReader(paths),
        )
    names = [str(path) for path in paths]
    answer: JsonObject = {"averaged": list(names), "path": str(report.path), "tensors": report.num_tensors}
    _answer(args, answer, lambda: f"the mean of {', '.join(names)} is in {report.path} ({report.kind})")
    return int(ExitCode.OK)


def _convert(args: argparse.Namespace) -> int:
    from paceline.checkpoint.convert.convert import convert

    to = args.to.expanduser().absolute()
    if args.dcp:
        from paceline.checkpoint.convert.dcp_export import write_dcp

        written = write_dcp(_one(args.source), to, overwrite=args.overwrite)
        _answer(args, written.to_json(), written.as_text)
        return int(ExitCode.OK)
    run = RunDir.at(to)
    if not args.overwrite and (run.exists() or scan(run.checkpoints)):
        what, hint = "the run directory is in use: it has checkpoints", "give another folder, or --overwrite"
        raise ConfigError(codes.EXPORT_DESTINATION(what, "--to", str(to), hint))
    make_folder(to)
    try:
        with FileLock(run.lock, timeout=0), named_errors(args.source, "the checkpoint cannot be read"):
            source = args.source.expanduser()
            found = convert(source, to, model=args.model, moments=not args.weights_only, step=args.step)
    except Timeout:
        raise BusyError(in_use(run)) from None
    if found.left:
        print(render_all(found.left), file=sys.stderr)
    _answer(args, found.to_json(), lambda: found.as_text(str(args.to)))
    return int(ExitCode.OK)


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "verify": _verify,
    "diff": _diff,
    "average": _average,
    "prune": _prune,
    "fetch": _fetch,
    "upload": _upload,
    "convert": _convert,
}


def _answer(args: argparse.Namespace, as_json: JsonObject, as_text: Callable[[], str]) -> None:
    print(json.dumps(as_json, indent=1) if args.json else as_text())


def _one(path: Path) -> Path:
    """Return the checkpoint at ``path``: itself, or the latest of a run."""
    _on_disk(path)
    if (path / MANIFEST).is_file() or is_step_name(path.name):
        return path
    notes: list[Diagnostic] = []
    found = choose(path, "latest", notes)
    if notes:
        print(render_all(notes), file=sys.stderr)
    return found


def _on_disk(path: Path) -> None:
    """Raise ConfigError for a URL, of which a path has one slash less."""
    scheme, colon, rest = str(path).partition(":/")
    if colon and scheme in STORES:
        what, hint = "this verb reads and changes folders only", f"paceline checkpoints fetch {scheme}://"
        raise ConfigError(
            codes.EXPORT_NO_CHECKPOINT(what, f"{scheme}://{rest.lstrip('/')}", "a URL", f"{hint}… --to DIR")
        )


def _named(run: Path, which: str) -> list[Path]:
    """Return the checkpoints to verify: ``all`` of a run, one of its names, or the path itself."""
    if (run / MANIFEST).is_file() or is_step_name(run.name):
        return [run]
    folder = RunDir.at(run).checkpoints
    found = scan(folder if folder.is_dir() else run)
    if which != "all":
        found = found[-1:] if which == "latest" else [f for f in found if f.name == which]
    if not found:
        raise ConfigError(_none(run))
    return [one.path for one in found]


def _none(run: Path | str) -> Diagnostic:
    return codes.EXPORT_NO_CHECKPOINT(
        "there is no such checkpoint", str(run), hint="give a run directory, or one of its checkpoints"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline checkpoints", description=__doc__, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser("list", parents=[common]).add_argument("run")
    verify = verbs.add_parser("verify", parents=[common])
    verify.add_argument("run")
    verify.add_argument("--checkpoint", default="all", metavar="WHICH")
    diff = verbs.add_parser("diff", parents=[common])
    diff.add_argument("first", type=Path)
    diff.add_argument("second", type=Path)
    average = verbs.add_parser("average", parents=[common])
    average.add_argument("paths", type=Path, nargs="+")
    average.add_argument("--last", type=int)
    average.add_argument("--to", type=Path, required=True)
    average.add_argument("--dtype", default="float32")
    average.add_argument("--role", default="policy")
    average.add_argument("--merge", action="store_true")
    average.add_argument("--overwrite", action="store_true")
    prune = verbs.add_parser("prune", parents=[common])
    prune.add_argument("run", type=Path)
    prune.add_argument("--keep", type=int, required=True)
    prune.add_argument("--every", type=int)
    prune.add_argument("--dry-run", action="store_true")
    fetch = verbs.add_parser("fetch", parents=[common])
    fetch.add_argument("url")
    fetch.add_argument("--to", type=Path, required=True)
    upload = verbs.add_parser("upload", parents=[common])
    upload.add_argument("run", type=Path)
    upload.add_argument("url")
    upload.add_argument("--checkpoint", default="latest", metavar="WHICH")
    convert = verbs.add_parser("convert", parents=[common])
    convert.add_argument("source", type=Path)
    convert.add_argument("--to", type=Path, required=True)
    convert.add_argument("--model", type=Path)
    convert.add_argument("--step", type=int)
    convert.add_argument("--weights-only", action="store_true")
    convert.add_argument("--dcp", action="store_true")
    convert.add_argument("--overwrite", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
