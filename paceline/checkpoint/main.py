"""``python -m paceline.checkpoint.main list|status|verify|diff|average|prune|fetch|upload|convert …``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from paceline.checkpoint import codes
from paceline.checkpoint.commands.prune import prune_run
from paceline.checkpoint.export.main import choose, url_of
from paceline.checkpoint.format.durable_files import make_folder, named_errors
from paceline.checkpoint.format.manifest import MANIFEST
from paceline.checkpoint.format.verify_files import is_step_name, scan
from paceline.checkpoint.load.find_checkpoint import as_table, list_checkpoints
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

_Option = dict[str, Any]  # of ``ArgumentParser.add_argument``


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code (``core.errors.ExitCode``)."""
    args = _parser().parse_args(argv)
    return _VERBS[args.verb][0](args)


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
    return _answer(args, {"checkpoints": [row.to_json() for row in rows]}, lambda: as_table(rows))


def _status(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.commands import state_of
    from paceline.checkpoint.object_store.obstore_backend import open_store

    url = url_of(args.url)
    state = state_of(open_store(url), url)
    return _answer(args, {"state": state.splitlines()}, lambda: state)


class _Report(Protocol):
    """The result of reading a checkpoint, and its errors."""

    @property
    def found(self) -> Sequence[Diagnostic]: ...

    def to_json(self) -> JsonObject: ...


def _verify(args: argparse.Namespace) -> int:
    reports: list[_Report] = []
    for name, sound, report in _verify_stored(args) if is_url(args.run) else _verify_local(args):
        reports.append(report)
        if not args.json:
            verdict = f"NOT sound\n{render_all(report.found)}" if report.found else sound
            print(f"{name}: {verdict}", flush=True)
    if not reports:
        raise ConfigError(_none(args.run))
    if args.json:
        print(json.dumps({"checkpoints": [report.to_json() for report in reports]}, indent=1))
    return int(ExitCode.FAILED if any(report.found for report in reports) else ExitCode.OK)


def _verify_local(args: argparse.Namespace) -> Iterator[tuple[str, str, _Report]]:
    """Yield (name, verdict for a sound one, report) of each checkpoint, as it is read."""
    from paceline.checkpoint.commands.verify import examine

    paths = _named(Path(args.run), args.checkpoint)
    for path in paths:
        with ExitStack() as stack:
            with suppress(CheckpointError):  # no manifest (any more): it is examined all the same
                stack.enter_context(being_read(path))
            report = examine(path)
        if report.found and len(paths) > 1 and not path.exists():
            print(f"{path.name}: removed meanwhile", file=sys.stderr)  # by the run, which keeps the last ones
            continue
        if not report.found:
            mark_verified(path)
        yield (
            path.name,
            f"sound: {report.num_tensors} tensors, {human_bytes(report.num_bytes)}, every hash",
            report,
        )


def _verify_stored(args: argparse.Namespace) -> Iterator[tuple[str, str, _Report]]:
    from paceline.checkpoint.object_store.commands import verdicts
    from paceline.checkpoint.object_store.obstore_backend import open_store

    url = url_of(args.run)
    for report in verdicts(open_store(url), url, args.checkpoint):
        size = human_bytes(report.num_bytes)
        yield report.where, f"every hash is right: {size}; no number was looked at", report


def _diff(args: argparse.Namespace) -> int:
    from paceline.checkpoint.commands.diff import compare
    from paceline.checkpoint.load.reader import CheckpointReader

    paths = [_one(path) for path in (args.first, args.second)]
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(being_read(path))
        first, second = (stack.enter_context(CheckpointReader(path)) for path in paths)
        difference = compare(first, second)
    return _answer(args, difference.to_json(), difference.as_text)


def _prune(args: argparse.Namespace) -> int:
    _on_disk(args.run)
    run = RunDir.at(args.run)
    if not run.checkpoints.is_dir():
        raise ConfigError(_none(args.run))
    with _locked(run):
        report = prune_run(run.checkpoints, RetentionRule(args.keep, args.every), dry=args.dry_run)
    word = "would be removed" if args.dry_run else "removed"
    lines = [f"{name}: {word}" for name in report.removed]
    lines += [f"{name}: kept: {why}" for name, why in report.kept.items()]
    lines.append(f"{human_bytes(report.num_bytes)} {'would be ' if args.dry_run else ''}freed")
    return _answer(args, report.to_json(), lambda: "\n".join(lines))


def _fetch(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.obstore_backend import open_store
    from paceline.checkpoint.object_store.transfer import download_named

    url, run = url_of(args.url), RunDir.at(args.to)
    make_folder(run.root)
    with _locked(run):
        brought = download_named(open_store(url), url, run.checkpoints)
    if brought.notes:
        print(render_all(brought.notes), file=sys.stderr)
    return _answer(args, {"path": str(brought.path)}, lambda: str(brought.path))


def _upload(args: argparse.Namespace) -> int:
    from paceline.checkpoint.object_store.commands import send

    url, run, notes = url_of(args.url), RunDir.at(args.run), list[Diagnostic]()
    if url.step is not None:
        raise ConfigError(
            rules_codes.SAVE_CHECKPOINT_URL(
                "this URL names one checkpoint", "URL", url.step, f"give the run's: {url}"
            )
        )
    if not run.checkpoints.is_dir():
        raise ConfigError(_none(args.run))
    with _locked(run), named_errors(run.root, "the checkpoint cannot be uploaded"):
        path = choose(args.run, args.checkpoint, notes)
        sent = send(path, run, url)
    if notes or sent:
        print(render_all([*notes, *sent]), file=sys.stderr)
    where = f"{url}/{path.name}"
    words = f"{where}{'' if sent else ' is there already'}"
    return _answer(args, {"url": where, "uploaded": bool(sent)}, lambda: words)


def _average(args: argparse.Namespace) -> int:
    from paceline.checkpoint.commands.average import AveragedReader
    from paceline.checkpoint.export.hf_export import export_hf

    paths = [_one(path) for path in args.paths]
    if args.last is not None and len(paths) == 1:
        folder = RunDir.at(args.paths[0]).checkpoints
        paths = [checkpoint.path for checkpoint in scan(folder) if checkpoint.problem is None][-args.last :]
    if len(paths) < 2:
        raise ConfigError(
            codes.EXPORT_NO_CHECKPOINT(
                "an average needs two checkpoints or more",
                "",
                str(len(paths)),
                "give several, or one run and --last N",
            )
        )
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
    return _answer(
        args, answer, lambda: f"the mean of {', '.join(names)} is in {report.path} ({report.kind})"
    )


def _convert(args: argparse.Namespace) -> int:
    from paceline.checkpoint.convert.convert import convert

    to = args.to.expanduser().absolute()
    if args.dcp:
        from paceline.checkpoint.convert.dcp_export import write_dcp

        written = write_dcp(_one(args.source), to, overwrite=args.overwrite)
        return _answer(args, written.to_json(), written.as_text)
    run = RunDir.at(to)
    if not args.overwrite and (run.exists() or scan(run.checkpoints)):
        raise ConfigError(
            codes.EXPORT_DESTINATION(
                "the run directory is in use: it has checkpoints",
                "--to",
                str(to),
                "give another folder, or --overwrite",
            )
        )
    make_folder(to)
    with _locked(run), named_errors(args.source, "the checkpoint cannot be read"):
        source = args.source.expanduser()
        report = convert(source, to, model=args.model, moments=not args.weights_only, step=args.step)
    if report.left:
        print(render_all(report.left), file=sys.stderr)
    return _answer(args, report.to_json(), lambda: report.as_text(str(args.to)))


_FLAG: _Option = {"action": "store_true"}
_PATH: _Option = {"type": Path}
_TO: _Option = {"type": Path, "required": True}
_NUMBER: _Option = {"type": int}
#: Verb → what it does, and its arguments; each takes --json, too
_VERBS: Mapping[str, tuple[Callable[[argparse.Namespace], int], Mapping[str, _Option]]] = {
    "list": (_list, {"run": {}}),
    "status": (_status, {"url": {}}),
    "verify": (_verify, {"run": {}, "--checkpoint": {"default": "all", "metavar": "WHICH"}}),
    "diff": (_diff, {"first": _PATH, "second": _PATH}),
    "average": (
        _average,
        {
            "paths": {**_PATH, "nargs": "+"},
            "--last": _NUMBER,
            "--to": _TO,
            "--dtype": {"default": "float32"},
            "--role": {"default": "policy"},
            "--merge": _FLAG,
            "--overwrite": _FLAG,
        },
    ),
    "prune": (
        _prune,
        {"run": _PATH, "--keep": {**_NUMBER, "required": True}, "--every": _NUMBER, "--dry-run": _FLAG},
    ),
    "fetch": (_fetch, {"url": {}, "--to": _TO}),
    "upload": (
        _upload,
        {"run": _PATH, "url": {}, "--checkpoint": {"default": "latest", "metavar": "WHICH"}},
    ),
    "convert": (
        _convert,
        {
            "source": _PATH,
            "--to": _TO,
            "--model": _PATH,
            "--step": _NUMBER,
            "--weights-only": _FLAG,
            "--dcp": _FLAG,
            "--overwrite": _FLAG,
        },
    ),
}


def _answer(args: argparse.Namespace, as_json: JsonObject, as_text: Callable[[], str]) -> int:
    print(json.dumps(as_json, indent=1) if args.json else as_text())
    return int(ExitCode.OK)


@contextmanager
def _locked(run: RunDir) -> Iterator[None]:
    """Hold the run's lock. Raises BusyError if the run is running."""
    try:
        with FileLock(run.lock, timeout=0):
            yield
    except Timeout:
        raise BusyError(in_use(run)) from None


def _one(path: Path) -> Path:
    """Return the checkpoint at ``path``: itself, or the latest of a run."""
    _on_disk(path)
    if (path / MANIFEST).is_file() or is_step_name(path.name):
        return path
    notes: list[Diagnostic] = []
    checkpoint = choose(path, "latest", notes)
    if notes:
        print(render_all(notes), file=sys.stderr)
    return checkpoint


def _on_disk(path: Path) -> None:
    """Raise ConfigError for a URL, which became a path with one slash less."""
    scheme, colon, rest = str(path).partition(":/")
    if colon and scheme in STORES:
        problem, remedy = (
            "this verb reads and changes folders only",
            f"paceline checkpoints fetch {scheme}://",
        )
        raise ConfigError(
            codes.EXPORT_NO_CHECKPOINT(
                problem, f"{scheme}://{rest.lstrip('/')}", "a URL", f"{remedy}… --to DIR"
            )
        )


def _named(run: Path, which: str) -> list[Path]:
    """Return the checkpoints to verify: ``all`` of a run, one of its names, or the path itself."""
    if (run / MANIFEST).is_file() or is_step_name(run.name):
        return [run]
    folder = RunDir.at(run).checkpoints
    checkpoints = scan(folder if folder.is_dir() else run)
    if which != "all":
        checkpoints = checkpoints[-1:] if which == "latest" else [f for f in checkpoints if f.name == which]
    if not checkpoints:
        raise ConfigError(_none(run))
    return [checkpoint.path for checkpoint in checkpoints]


def _none(run: Path | str) -> Diagnostic:
    return codes.EXPORT_NO_CHECKPOINT(
        "there is no such checkpoint", str(run), hint="give a run directory, or one of its checkpoints"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline checkpoints", description=__doc__, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, (_, options) in _VERBS.items():
        of_verb = verbs.add_parser(verb)
        for name, option in {**options, "--json": {**_FLAG, "help": "print JSON"}}.items():
            of_verb.add_argument(name, **option)
    return parser


if __name__ == "__main__":
    sys.exit(main())
