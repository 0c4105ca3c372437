"""Command lines of TRL, LLaMA-Factory, ms-swift and axolotl, and shell scripts that hold one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.detect import not_imported, program_of_command
from paceline.config.import_export.argument_tables import written
from paceline.config.import_export.commands.launchers import (
    LAUNCH_NAMES,
    Launch,
    Option,
    launch_of,
    slurm_options,
    slurm_variables,
)
from paceline.config.import_export.commands.open_values import NotKnown
from paceline.config.import_export.commands.other_jobs import (
    is_other_job,
    known_jobs,
    refuse_other_job,
)
from paceline.config.import_export.commands.shell_script import Ran, Script
from paceline.config.import_export.programs import trl
from paceline.config.import_export.verdicts import Finding
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

_PROGRAMS = {
    "llamafactory-cli": "llamafactory",
    "lmf": "llamafactory",
    "train_bash.py": "llamafactory",
    "llamafactory.cli": "llamafactory",
    "trl": "trl",
    "swift": "swift",
    "axolotl": "axolotl",
    "axolotl.cli.train": "axolotl",
}
#: scripts by name → the system and the command or trainer
_SCRIPTS = {f"{name}.py": ("trl", name) for name in trl.TRAINERS}
_SWIFT = re.compile(r"(?:.*/)?swift[./]cli[./](sft|pt|rlhf)(?:\.py)?")
_TRL = re.compile(rf"trl\.scripts\.({'|'.join(trl.TRAINERS)})")
_FILES = (".yaml", ".yml", ".json")
_SHELL = (".sh", ".bash", ".slurm", ".sbatch")
_COMMANDS = (*trl.TRAINERS, "pt", "rlhf")
#: programs that do more than train → the words of theirs that train
_VERBS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llamafactory-cli", "lmf", "axolotl"), ("train",)),
    "trl": tuple(trl.TRAINERS),
    "swift": ("sft", "pt", "rlhf"),
}
_STARTERS = ("accelerate launch", "accelerate-launch", "torchrun", "deepspeed", "python")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")  # a path like runs/lr=1/x.yaml is none


@dataclass
class Command:
    """A command line's keys, variables, launcher and files.

    - ``data``: its keys
    - ``lines``: the argument (from 1), or the script's line, at which each stands
    - ``environment``: variables set for it
    - ``places``: the line of each variable
    - ``config``: a file whose keys lie below its own
    - ``launch``: what starts it
    - ``files``: texts that the script writes, with the line at which each begins
    - ``folder``: where the script goes (``cd``) before it starts the command
    - ``found``: verdicts on parts that are not keys
    """

    name: str
    system: str | None = None
    algorithm: str | None = None
    config: str | None = None
    data: JsonObject = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    launch: Launch = field(default_factory=Launch)
    files: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    folder: str = ""
    found: list[Finding] = field(default_factory=list)


@dataclass
class Commands:
    """The commands of a shell text: trainings, other jobs of known programs, scripts, modules, possible
    trainings.

    ``folder``: the last one that it entered (``cd``).
    """

    headers: list[Option]
    folder: str = ""
    trainings: list[tuple[Command, Ran]] = field(default_factory=list)
    others: list[Ran] = field(default_factory=list)
    scripts: list[Ran] = field(default_factory=list)
    modules: list[Ran] = field(default_factory=list)
    doubtful: list[Ran] = field(default_factory=list)


@dataclass(frozen=True)
class Around:
    """The launchers, variables and ``#SBATCH`` options around a script."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[Option, ...] = ()


@dataclass(frozen=True)
class _Word:
    text: str
    line: int


def is_command(text: str) -> bool:
    """Whether ``text`` is a command line in one string, or a shell script, and not a config."""
    if Path(text).suffix in _SHELL and Path(text).is_file():
        return True
    names = [Path(word).name for word in text.split()]
    others = {start.partition(" ")[0] for job in known_jobs() for start in job.starts}
    known = {*_PROGRAMS, *LAUNCH_NAMES, *others}
    starts_program = any(name in known or name.endswith(".py") for name in names)
    return len(names) > 1 and starts_program and not Path(text).exists()


def read_command(arguments: Sequence[str]) -> Command:
    """Read a command line (its words, or one string), or a shell script that holds one.

    Raises ConfigError for a script with no such command, with several, or with unknown variables.
    """
    if Path(arguments[0]).suffix in _SHELL and Path(arguments[0]).is_file():
        return _of_text(read_text(arguments[0]), arguments[0], arguments[1:])
    if len(arguments) == 1 and not Path(arguments[0]).is_file():
        return _of_text(arguments[0], "command line")
    refuse_other_job(arguments, range(1, len(arguments) + 1), "command line")
    return _read([_Word(word, n) for n, word in enumerate(arguments, 1)], "command line")


def commands_in(
    text: str, path: str, arguments: Sequence[str] = (), around: Around | None = None
) -> Commands:
    """Return the commands of a shell text; ``path``: the script's, for messages. Raises ConfigError.

    With ``around`` (what starts the script) also find the scripts that this one starts.
    """
    headers = [*(around.headers if around else ()), *slurm_options(text)]
    variables = {**slurm_variables(headers), **(around.environment if around else {})}
    commands = Commands(headers)
    try:
        for ran in Script(text, arguments, variables, _is_followed if around else _is_read).ran():
            if ran.words and ran.words[0].startswith("--") and commands.trainings:
                raise ConfigError(
                    codes.CONFIG_IMPORT_COMMAND(
                        "the command ends before these arguments, so that its program never gets them",
                        f"{path}:{ran.line}",
                        ran.words[0],
                        "remove the comment or the empty line above, or end the line before it with a"
                        " backslash",
                    )
                )
            _sort(ran, path, around, commands)
    except (ValueError, RecursionError):
        raise ConfigError(
            codes.CONFIG_IMPORT_COMMAND(
                "a quote or a bracket is opened and not closed", f"{path}:1", "", "close it"
            )
        ) from None
    return commands


def _sort(ran: Ran, path: str, around: Around | None, commands: Commands) -> None:
    """Add a command to those of its kind."""
    if ran.words[:1] == ["cd"] and len(ran.words) == 2 and not ran.problems:
        commands.folder = str(Path(commands.folder) / ran.words[1])
        return
    if around is not None:
        ran.words = [*around.words, *ran.words]
        ran.lines = [*([ran.line] * len(around.words)), *ran.lines]
        ran.environment = {**around.environment, **ran.environment}
    if is_other_job(ran.words, ran.lines):
        commands.others.append(ran)
    elif _start(ran.words, ran.lines) is not None:
        command = _of_script(ran, path)
        command.folder = commands.folder
        commands.trainings.append((command, ran))
    elif around is not None and script_of(ran.words, ran.lines):
        commands.scripts.append(ran)
    elif around is not None and _runs_module(ran):
        commands.modules.append(ran)
    elif _starts_another(ran):
        commands.doubtful.append(ran)


def _of_text(text: str, path: str, arguments: Sequence[str] = ()) -> Command:
    """Return the only training command of a shell text. Raises ConfigError."""
    commands = commands_in(text, path, arguments)
    trainings, others = commands.trainings, commands.others
    if not trainings and others:
        refuse_other_job(others[0].words, others[0].lines, f"{path}:{others[0].line}")
    if not trainings and commands.doubtful:
        raise not_certain(commands.doubtful[-1], text, path)
    return _chosen(
        [training for training in trainings if training[0].system is not None] or trainings,
        text,
        path,
        commands.headers,
    )


def _chosen(trainings: list[tuple[Command, Ran]], text: str, path: str, headers: list[Option]) -> Command:
    """Return the only training command. Raises ConfigError if there are none or several, or it is
    uncertain."""
    if len(trainings) != 1:
        message = "the script holds several commands that train" if trainings else "no command here is known"
        places = ", ".join(f"line {ran.line}" for _, ran in trainings)
        remedy = "import one of them: paceline config import 'swift sft --model …' (the command in quotes)"
        if not trainings and (program := program_of_command(text)):
            message, remedy = not_imported(program)
        raise ConfigError(codes.CONFIG_IMPORT_COMMAND(message, f"{path}:1", places, remedy))
    command, ran = trainings[0]
    if ran.problems:
        raise not_certain(ran, text, path)
    command.launch.options += headers
    return command


def _runs_module(ran: Ran) -> bool:
    """Whether torchrun, accelerate or deepspeed run a module (``-m``) that is no known program."""
    launch = launch_of(ran.words, ran.lines)
    names = [option.name for option in launch.options]
    started = any(name in _STARTERS[:-1] for name in launch.launchers)
    return started and "module" in names and launch.program < len(ran.words)


def _starts_another(ran: Ran) -> bool:
    """Whether a command may start a training: it is a launcher with an unresolved value, or a shell."""
    names = [Path(word).name for word in ran.words]
    text = "-c" in names and any(name in ("bash", "sh") for name in names[: names.index("-c")])
    return text or (ran.problems != [] and names[:1] != [] and names[0] in LAUNCH_NAMES)


def not_certain(ran: Ran, text: str, path: str) -> ConfigError:
    """Return why a command cannot be read: each unknown value, or the text of a shell."""
    in_shell = NotKnown("the command stands in the text of a shell (-c)", "import that text alone, in quotes")
    written = text.split("\n")
    problems: dict[str, tuple[NotKnown, int]] = {}
    for problem, line in ran.problems:
        problems.setdefault(problem.what, (problem, line or ran.line))
    return ConfigError(
        *(
            codes.CONFIG_IMPORT_COMMAND(
                problem.what, f"{path}:{line}", written[line - 1].strip(), problem.hint
            )
            for problem, line in [*problems.values()] or [(in_shell, ran.line)]
        )
    )


def _of_script(ran: Ran, path: str) -> Command:
    """Return a script's command. Of a command in quotes, errors give the argument's number, not the line."""
    lines = ran.lines if path != "command line" else range(1, len(ran.words) + 1)
    command = _read([_Word(text, n) for text, n in zip(ran.words, lines, strict=True)], path)
    command.environment = {**ran.environment, **command.environment}
    command.places = {**ran.places, **command.places}
    command.files = ran.files
    return command


def _start(words: Sequence[str], lines: Sequence[int]) -> Launch | None:
    """Return what starts the program that trains, and where it stands; None for another command."""
    launch = launch_of(words, lines)
    word, after = [*words[launch.program : launch.program + 2], "", ""][:2]
    name = Path(word).name
    if name in _PROGRAMS:
        verb = after.startswith("-") or "=" in after or Path(after).suffix in _FILES or not after
        return launch if verb or after in _VERBS.get(name, (after,)) else None
    if name in _SCRIPTS or _SWIFT.fullmatch(word) or _TRL.fullmatch(word):
        return launch
    launched = any(starter in launch.launchers for starter in _STARTERS)
    return launch if word.endswith(".py") and (launched or launch.program == 0) else None


def script_of(words: Sequence[str], lines: Sequence[int]) -> list[str]:
    """Return the shell script that a command starts, with its arguments; else nothing."""
    rest = list(words[launch_of(words, lines).program :])
    name = Path(rest[0]).name if rest else ""
    if name in ("bash", "sh", "zsh", "sbatch", "source", "."):
        after = rest[1:]
        while after and after[0].startswith("-"):
            takes = name == "sbatch" and "=" not in after[0] and len(after[0]) == 2
            after = after[1 + takes :]
        rest = after
    return rest if rest and Path(rest[0]).suffix in _SHELL else []


def _is_followed(words: Sequence[str], lines: Sequence[int]) -> bool:
    """Whether the arguments of a command matter where scripts that start others are followed."""
    return _is_read(words, lines) or bool(script_of(words, lines))


def _is_read(words: Sequence[str], lines: Sequence[int]) -> bool:
    """Whether the arguments of a command matter: it trains, or does another job of a known program."""
    return _start(words, lines) is not None or is_other_job(words, lines)


def _read(words: Sequence[_Word], name: str) -> Command:
    command = Command(name=name)
    texts, lines = [word.text for word in words], [word.line for word in words]
    command.launch = _start(texts, lines) or launch_of(texts, lines)
    command.environment, command.places = dict(command.launch.environment), dict(command.launch.places)
    position = command.launch.program
    if position < len(words):
        _program(words[position].text, command)
        position += 1
    while position < len(words) and not words[position].text.startswith("--"):
        _positional(words[position], command)
        position += 1
    # axolotl: what follows `--` belongs to its launcher
    end = next((n for n in range(position, len(words)) if words[n].text == "--"), len(words))
    _flags(words[position:end], command)
    if command.system == "axolotl":
        _of_axolotl(words[end + 1 :], command)
    config = command.data.get("config")
    if isinstance(config, str) and Path(config).suffix in _FILES:
        command.config = str(command.data.pop("config"))
    return command


def _of_axolotl(words: Sequence[_Word], command: Command) -> None:
    """``axolotl train --launcher torchrun -- --nproc_per_node 2``: what follows ``--`` is the launcher's."""
    launcher = command.data.pop("launcher", "accelerate" if words else None)
    if launcher in ("accelerate", "torchrun"):
        chosen = "accelerate launch" if launcher == "accelerate" else "torchrun"
        texts = [*chosen.split(), *(word.text for word in words)]
        command.launch = launch_of(texts, [*([1] * len(chosen.split())), *(word.line for word in words)])


def _program(word: str, command: Command) -> None:
    name = Path(word).name
    if script := _SWIFT.fullmatch(word):
        command.system, command.algorithm = "swift", script[1]
    elif name in _PROGRAMS:
        command.system = _PROGRAMS[name]
    elif name in _SCRIPTS:
        command.system, command.algorithm = _SCRIPTS[name]
    elif script := _TRL.fullmatch(word):
        command.system, command.algorithm = "trl", script[1]


def _positional(word: _Word, command: Command) -> None:
    """A trainer, a config file, or ``key=value`` as LLaMA-Factory takes it."""
    key, _, value = word.text.partition("=")
    if word.text in _COMMANDS:
        command.algorithm = word.text
    elif _OVERRIDE.match(word.text):
        command.lines[key], command.data[key] = word.line, _one(value)
    elif Path(word.text).suffix in _FILES:
        command.config = word.text


def _flags(words: Sequence[_Word], command: Command) -> None:
    position = 0
    while position < len(words):
        key, equals, value = words[position].text.removeprefix("--").partition("=")
        line, values = words[position].line, [value] if equals else []
        position += 1
        while not equals and position < len(words) and not words[position].text.startswith("--"):
            values.append(words[position].text)
            position += 1
        command.lines[key.replace("-", "_")] = line
        command.data[key.replace("-", "_")] = _value(values)


def _value(values: Sequence[str]) -> Json:
    """A flag alone is true; several values are a list, as the hub's argument parser reads them."""
    parsed: list[Json] = [_one(value) for value in values]
    return True if not parsed else parsed[0] if len(parsed) == 1 else parsed


def _one(value: str) -> Json:
    return written(value) if value[:1] in ("[", "{") else resolve_plain(value)
