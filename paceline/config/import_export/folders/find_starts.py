"""Find what starts trainings in a folder: commands in scripts, Makefiles, Dockerfiles and manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from paceline.config import codes
from paceline.config.backend_files.detect import not_imported, program_of_command
from paceline.config.import_export.commands.command_line import (
    Around,
    Command,
    Commands,
    commands_in,
    not_certain,
    script_of,
)
from paceline.config.import_export.commands.launchers import SET, launch_of
from paceline.config.import_export.commands.other_jobs import refuse_other_job
from paceline.config.import_export.commands.shell_script import Ran
from paceline.config.import_export.folders.list_files import FolderFiles
from paceline.config.import_export.folders.manifests import is_manifest, manifest_snippets
from paceline.config.import_export.folders.snippets import READERS, Snippet
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

_DEEPEST = 4  # scripts that start scripts
#: names of programs that may train
TRAINS = re.compile(r"(?i)(train|sft|dpo|grpo|ppo|kto|orpo|rlhf|reward|tune|lora)")
_MENTIONS = re.compile(
    r"llamafactory|\btrl\b|\bswift\b|axolotl|torchrun|accelerate launch|\bdeepspeed\b|train\w*\.py"
    r"|distributed\.run"
)
_SBATCH = re.compile(r"^#SBATCH.*$", re.M)


@dataclass
class TrainingStart:
    """A command that trains, or may train, with its place.

    - ``file``: the file that a user starts; ``line``: the command's line, in the last file of ``through`` if
    any
    - ``words``: the command, launchers first
    - ``problems``: why it was not read; ``does``: a job other than training, and Paceline's verb for it
    - ``directives``: lines of the scheduler
    """

    file: str
    line: int
    label: str = ""
    command: Command | None = None
    words: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    does: str = ""
    directives: tuple[str, ...] = ()
    counts: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    folder: str = ""

    @property
    def holder(self) -> str:
        """The file in which the command stands."""
        return self.through[-1] if self.through else self.file

    def place(self) -> str:
        """Return ``file:line``, with the label and the files on the way."""
        label = f" ({self.label})" if self.label else ""
        way = " -> ".join([f"{self.file}{label}", *self.through])
        return f"{way}:{self.line}"


@dataclass
class Starts:
    """The starts of a folder. ``manifests``: container manifests; ``partly``: file → the part that was not
    read."""

    found: list[TrainingStart] = field(default_factory=list)
    manifests: set[str] = field(default_factory=set)
    partly: dict[str, str] = field(default_factory=dict)


def find_starts(listed: FolderFiles) -> Starts:
    """Return every start in order of the files; a script that another file starts is found there alone."""
    starts, followed = Starts(), set[str]()
    finder = _Finder(listed, followed)
    by_file: dict[str, list[TrainingStart]] = {}
    for snippet in _snippets(listed, starts):
        by_file.setdefault(snippet.file, []).extend(finder.of(snippet))
    starts.found = [start for file, matches in by_file.items() if file not in followed for start in matches]
    return starts


def _snippets(listed: FolderFiles, starts: Starts) -> Iterator[Snippet]:
    for kind, reader in READERS.items():
        for file in listed.of(kind):
            yield from reader(file)
    for file in listed.of("config"):
        if Path(file.path).suffix != ".json" and is_manifest(file.text):
            snippets, problem = manifest_snippets(file)
            starts.manifests.add(file.path)
            starts.partly |= {file.path: problem} if problem else {}
            yield from (snippet for snippet in snippets if snippet.text.strip())
    for file in listed.of("script"):
        yield Snippet(file.path, file.text)


class _Finder:
    """Finds starts, and follows scripts that start scripts."""

    def __init__(self, listed: FolderFiles, followed: set[str]) -> None:
        self._listed, self._followed = listed, followed

    def of(self, snippet: Snippet) -> list[TrainingStart]:
        """Return the starts of a snippet."""
        around = Around(environment=dict(snippet.environment))
        return list(self._within(snippet, around, (), ()))

    def _within(
        self, snippet: Snippet, around: Around, through: tuple[str, ...], arguments: Iterable[str]
    ) -> Iterator[TrainingStart]:
        holder = through[-1] if through else snippet.file
        name = "command line" if snippet.words else holder
        text, first = snippet.text, TrainingStart(snippet.file, 1, snippet.label, through=through)
        try:
            matches = commands_in(text, name, tuple(arguments), around)
        except ConfigError as error:
            problems = tuple(_moved(item, snippet, holder) for item in error.diagnostics)
            if _MENTIONS.search(text):
                yield replace(first, problems=problems)
            else:
                yield replace(first, does=f"not read: {problems[0].what} ({problems[0].where})")
            return
        directives = tuple(_SBATCH.findall(text))
        for command, ran in matches.trainings:
            yield self._training(command, ran, snippet, through, directives)
        for ran in matches.others:
            yield replace(first, line=snippet.line(ran.line), does=_does(ran))
        for ran in matches.doubtful:
            problems = tuple(
                _moved(item, snippet, holder) for item in not_certain(ran, text, name).diagnostics
            )
            yield replace(first, line=snippet.line(ran.line), problems=problems, words=tuple(ran.words))
        for ran in matches.modules:
            yield _module(ran, first, snippet)
        for ran in matches.scripts:
            yield from self._followed_by(ran, snippet, matches, through)
        program = None if matches.trainings else program_of_command(text)
        if program:
            message, hint = not_imported(program)
            yield replace(first, problems=(codes.CONFIG_IMPORT_COMMAND(message, f"{holder}:1", "", hint),))

    def _training(
        self,
        command: Command,
        ran: Ran,
        snippet: Snippet,
        through: tuple[str, ...],
        directives: tuple[str, ...],
    ) -> TrainingStart:
        for lines in (command.lines, command.places):
            lines.update({key: snippet.line(line) for key, line in lines.items()})
        options = command.launch.options
        command.launch.options = [replace(option, line=snippet.line(option.line)) for option in options]
        command.files = {**snippet.written, **command.files}
        holder = through[-1] if through else snippet.file
        command.name = holder
        problems: tuple[Diagnostic, ...] = ()
        if ran.problems:
            refused = not_certain(ran, snippet.text, holder).diagnostics
            problems = tuple(_moved(item, snippet, holder) for item in refused)
        return TrainingStart(
            snippet.file,
            snippet.line(ran.line),
            snippet.label,
            command,
            tuple(ran.words),
            through,
            problems,
            directives=directives,
            counts=snippet.counts,
            folder=str(PurePosixPath(snippet.folder) / command.folder) if snippet.folder else command.folder,
        )

    def _followed_by(
        self, ran: Ran, snippet: Snippet, matches: Commands, through: tuple[str, ...]
    ) -> Iterator[TrainingStart]:
        """Yield the starts of a script that a command starts."""
        name, *arguments = script_of(ran.words, ran.lines)
        holder, line = through[-1] if through else snippet.file, snippet.line(ran.line)
        file = resolve(name, holder, snippet.folder or matches.folder, self._listed)
        here = TrainingStart(snippet.file, line, snippet.label, through=through)
        if ran.problems:
            problems = not_certain(ran, snippet.text, holder).diagnostics
            yield replace(here, problems=tuple(_moved(item, snippet, holder) for item in problems))
        elif not file or self._listed.files[file].kind != "script":
            yield replace(here, does=f"it starts {name}, which is not in the folder")
        elif file == holder or file in through or len(through) >= _DEEPEST:
            yield replace(here, does=f"it starts {name}, and is started by it")
        else:
            self._followed.add(file)
            launch = launch_of(ran.words, ran.lines)
            environment = {**ran.environment, **launch.environment}
            headers = tuple(matches.headers)
            launchers = tuple(word for word in ran.words[: launch.program] if not SET.match(word))
            around = Around(launchers, environment, headers)
            inner = Snippet(snippet.file, self._listed.files[file].text, label=snippet.label)
            inner = replace(inner, counts=snippet.counts, folder=snippet.folder, written=snippet.written)
            yield from self._within(inner, around, (*through, file), arguments)


def resolve(name: str, holder: str, folder: str, listed: FolderFiles) -> str:
    """Return the file of the folder to which a path in ``holder`` refers, or an empty text.

    A path of another machine (``/workspace/repo/configs/a.yaml``) matches the file with its longest suffix.
    """
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    for base in bases(holder, folder):
        path = PurePosixPath(*_without_parents([*PurePosixPath(base).parts, *parts]))
        if not name.startswith(("/", "~")) and str(path) in listed.files:
            return str(path)
    plain = [part for part in parts if part not in ("..", "~")]
    ends = [str(PurePosixPath(*plain[start:])) for start in range(len(plain))]
    return next((end for end in ends if end in listed.files), "")


def bases(holder: str, folder: str = "") -> list[str]:
    """Return the folders from which a file may be started, the likeliest first: its own, and those around."""
    own = PurePosixPath(holder).parent
    around = [str(path) for path in (own, *own.parents)]
    inside = (
        [str(PurePosixPath(base) / folder) for base in around] if folder[:1] not in ("", "/", "~") else []
    )
    return [*inside, *around]


def _without_parents(parts: list[str]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == ".." and kept:
            kept.pop()
        elif part not in (".", ".."):
            kept.append(part)
    return kept


def _module(ran: Ran, first: TrainingStart, snippet: Snippet) -> TrainingStart:
    """Return a start that runs an unknown Python module."""
    words, line = ran.words[launch_of(ran.words, ran.lines).program :], snippet.line(ran.line)
    if not TRAINS.search(words[0]):
        return replace(
            first, line=line, does=f"it starts {words[0]}, which is no training of a known program"
        )
    message = f"{words[0]} is a program of its own: its arguments do not tell what it trains"
    hint = "write a Paceline YAML (docs/how-to/configure.md)"
    problem = codes.CONFIG_IMPORT_COMMAND(message, f"{first.holder}:{line}", " ".join(words)[:200], hint)
    return replace(first, line=line, problems=(problem,))


def _does(ran: Ran) -> str:
    """Return what a command other than a training does, and the Paceline command for it."""
    try:
        refuse_other_job(ran.words, ran.lines, "")
    except ConfigError as error:
        matches = error.diagnostics[0]
        return f"{matches.what}; {matches.hint}"
    return "it does not train"


def _moved(item: Diagnostic, snippet: Snippet, holder: str) -> Diagnostic:
    """Return a finding at the file's own line."""
    _, _, line = item.where.rpartition(":")
    return replace(item, where=f"{holder}:{snippet.line(int(line))}") if line.isdecimal() else item
