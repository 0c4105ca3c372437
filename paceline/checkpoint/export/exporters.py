"""Exporters add files to an exported folder: the built-in ``gguf``, or the user's functions.

Paceline calls a user's exporter with the finished folder, before the folder gets its name. The exporter
writes its files into it, so either all files appear or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.strict_json import parse_object
from paceline.config.sections.extensions import EXPORTERS, NO_EXPORTER, own_name
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.files import read_run_file
from paceline.core.plugins.tables import load_attr
from paceline.core.rundir import RunDir

Exporter = str | Callable[[Path], None]
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class OwnExporter:
    """A function of an exported folder, and its name."""

    name: str
    function: Callable[[Path], None]


@dataclass(frozen=True)
class Exporters:
    """``gguf``: model.gguf is written, too; ``own``: the user's functions, in their order."""

    gguf: bool = False
    own: tuple[OwnExporter, ...] = ()


def exporters_of(requested: Sequence[Exporter] | None, checkpoint: Path) -> Exporters:
    """Return the requested exporters; without a request, those of the checkpoint's run.

    ``none`` stands for no exporter. Raises ConfigError before anything is written.
    """
    where = "--exporter"
    if requested is None:
        requested, where = _of_run(checkpoint), "training.exporters"
    if isinstance(requested, str) or callable(requested):
        requested = [requested]
    read, functions, gguf = own_name("exporters", (*EXPORTERS, NO_EXPORTER)), list[OwnExporter](), False
    for exporter in requested:
        name = (
            read(exporter)
            if isinstance(exporter, str)
            else getattr(exporter, "__qualname__", type(exporter).__name__)
        )
        if isinstance(exporter, str) and name in EXPORTERS:
            gguf = True
        elif not isinstance(exporter, str) or name != NO_EXPORTER:
            functions.append(
                OwnExporter(name, own_exporter(name, where) if isinstance(exporter, str) else exporter)
            )
    return Exporters(gguf, tuple(functions))


def own_exporter(name: str, where: str) -> Callable[[Path], None]:
    """Return the function ``module:function``. Raises ConfigError."""
    if ":" not in name:
        problem, remedy = (
            f"there is no exporter named '{name}'",
            f"{', '.join(EXPORTERS)}, or module:function",
        )
        raise ConfigError(codes.EXPORT_EXPORTER(problem, where, name, remedy))
    function: Callable[[Path], None] = load_attr(name)
    if not callable(function):
        raise ConfigError(
            codes.EXPORT_EXPORTER(
                f"'{name}' is no function of the exported folder",
                where,
                type(function).__name__,
                "name a function",
            )
        )
    return function


def _of_run(checkpoint: Path) -> Sequence[str]:
    """Return ``training.exporters`` of the run that the checkpoint lies in; nothing if it lies in none."""
    file = RunDir.at(checkpoint.resolve().parent.parent).config_json
    try:
        stored = parse_object(read_run_file(file).encode(), str(file), max_bytes=_MOST_BYTES).get("training")
    except OSError:
        return ()
    names = stored.get("exporters") if isinstance(stored, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else ()


def run_exporters(exporters: Iterable[OwnExporter], folder: Path) -> None:
    """Call each with the folder. Raises CheckpointError for one that raises or changes existing files."""
    for exporter in exporters:
        before = _files(folder)
        try:
            exporter.function(folder)
        except Exception as error:  # a user's function may raise anything
            problem, evidence = (
                f"the exporter '{exporter.name}' raised an exception",
                f"{type(error).__name__}: {error}",
            )
            raise CheckpointError(
                codes.EXPORT_EXPORTER(
                    problem, str(folder), evidence[:400], "correct it, or leave it out (--exporter none)"
                )
            ) from error
        after = _files(folder)
        if changed := [name for name, state in before.items() if after.get(name) != state]:
            problem = f"the exporter '{exporter.name}' has changed files of the model"
            raise CheckpointError(
                codes.EXPORT_EXPORTER(
                    problem,
                    str(folder),
                    ", ".join(changed[:8]),
                    "an exporter writes files of its own names into the folder",
                )
            )


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    files = ((p, p.stat()) for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): (state.st_size, state.st_mtime_ns) for p, state in files}
