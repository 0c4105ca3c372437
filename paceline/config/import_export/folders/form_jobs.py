"""Jobs of a folder: the start, config and other files of each, and the verdicts on their keys."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from paceline.config import codes
from paceline.config.backend_files.detect import not_imported
from paceline.config.import_export.commands.command_line import Command
from paceline.config.import_export.commands.python_script import read_script
from paceline.config.import_export.folders.find_starts import (
    TRAINS,
    Starts,
    TrainingStart,
    bases,
    find_starts,
    resolve,
)
from paceline.config.import_export.folders.list_files import (
    NAMES,
    NOT_IMPORTED,
    Configs,
    FolderFile,
    FolderFiles,
    kind_of_config,
    list_folder,
)
from paceline.config.import_export.import_config import (
    TRANSLATORS,
    import_command,
    import_config,
    lower_keys,
    system_of,
)
from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting, flat
from paceline.config.import_export.write_yaml import accepted, left_over
from paceline.config.load import Rules
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

_ARGUMENTS = re.compile(
    r"\b(Seq2Seq)?TrainingArguments\(|\b(SFT|DPO|KTO|GRPO|RLOO|Reward|PPO|ORPO|CPO)Config\("
)
_LOCAL = re.compile(r"[^\s,{}\[\]]+\.(jsonl?|ya?ml|csv|parquet|arrow|jinja2?)")


@dataclass
class FolderJob:
    """A training of the folder, and its translation.

    - ``folder``: where it runs, relative to the folder that was read
    - ``findings``: by file, the verdict on each of its keys; defaults of the program are its config's
    - ``files``: the files that it uses, with the kind of each; ``missing``: named files that are not here
    - ``problems``: what is wrong with the YAML; ``not_read``: why there is no YAML
    - ``given``: the other program's keys, with the command's over its file's; ``trainer``: the kind of
    training
    """

    name: str
    place: str
    start: TrainingStart | None = None
    folder: str = ""
    imported: Imported | None = None
    yaml: str = ""
    files: dict[str, str] = field(default_factory=dict)
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    not_read: tuple[Diagnostic, ...] = ()
    given: JsonObject = field(default_factory=dict)
    trainer: str = "sft"

    def of(self, verdict: KeyVerdict) -> list[Finding]:
        """Return the findings with this verdict."""
        return [item for matches in self.findings.values() for item in matches if item.verdict is verdict]

    @property
    def lacks(self) -> list[str]:
        """Return the required keys that the YAML lacks, since the user's program sets them."""
        needed = {"model.name_or_path": "model", "data.train": "data.train"}
        settings = self.imported.settings if self.imported else {}
        return [
            path
            for path, start in needed.items()
            if self.imported and not any(f"{key}.".startswith(f"{start}.") for key in settings)
        ]

    @property
    def loses(self) -> bool:
        """Whether a setting that has an effect is lost."""
        return bool(self.not_read or self.problems or self.lacks or self.of(KeyVerdict.LOST))


@dataclass
class MigratedFolder:
    """A folder's jobs, and remarks on other files and starts (``beside``)."""

    path: Path
    listed: FolderFiles
    jobs: list[FolderJob]
    beside: dict[str, str]

    @property
    def loses(self) -> bool:
        """Whether a job loses a setting that has an effect."""
        return any(job.loses for job in self.jobs)


def migrate_folder(path: Path, rules: Rules) -> MigratedFolder:
    """Read a folder, or one file, and form its jobs. Nothing in it is executed.

    Changes the current directory meanwhile, so that paths resolve as where the job runs. Raises ConfigError
    where nothing starts a training, and no config is one.
    """
    if not os.path.lexists(path):
        raise ConfigError(
            codes.CONFIG_MISSING_FILE(
                "there is no such file or folder", str(path), hint="give a path that exists"
            )
        )
    listed = list_folder(path.resolve())
    migration = _Former(path, listed, rules).migration()
    if not migration.jobs:
        known = ", ".join(NAMES[name] for name in TRANSLATORS)
        counts = (
            f"{len(listed.files)} files read, {len(listed.skipped)} skipped, {listed.others} of other kinds"
        )
        notes = [
            f"{file}: {message}" for file, message in [*migration.beside.items(), *listed.skipped.items()]
        ]
        raise ConfigError(
            codes.CONFIG_IMPORT_COMMAND(
                "nothing here starts a training of a program that is known",
                str(path),
                "\n".join([counts, *notes[:10]]),
                f"give a folder with scripts or configs of {known}",
            )
        )
    return migration


class _Former:
    """Forms the jobs of one folder."""

    def __init__(self, path: Path, listed: FolderFiles, rules: Rules) -> None:
        self._path, self._listed, self._rules = path, listed, rules
        self._configs = Configs()
        self._starts: Starts = find_starts(listed)
        self._used: set[str] = set()
        self._names: set[str] = set()

    def migration(self) -> MigratedFolder:
        """Return the jobs: those of starts, then those of configs that nothing starts."""
        jobs, beside = list[FolderJob](), dict[str, str]()
        for start in self._starts.found:
            job = self._of_start(start)
            if isinstance(job, FolderJob):
                jobs.append(self._named(job))
            else:
                beside[start.place()] = job
        for file in self._listed.of("config"):
            if file.path not in self._used and file.path not in self._starts.manifests:
                job = self._of_config(file)
                if isinstance(job, FolderJob):
                    jobs.append(self._named(job))
                elif job:
                    beside[file.path] = job
        unread = self._configs.unread | self._starts.partly
        beside |= {file: f"not read: {why}" for file, why in unread.items() if file not in self._used}
        for file in self._listed.of("python"):
            if file.path not in self._used and (command := self._script(file.path)):
                jobs.append(self._named(self._of_script(file.path, command)))
        return MigratedFolder(self._path, self._listed, jobs, beside)

    def _named(self, job: FolderJob) -> FolderJob:
        """Give a job a unique name, which its YAML gets."""
        name, number = re.sub(r"[^\w.-]+", "-", job.name).strip("-.") or "job", 2
        job.name = name
        while job.name in self._names:
            job.name, number = f"{name}-{number}", number + 1
        self._names.add(job.name)
        return job

    def _of_start(self, start: TrainingStart) -> FolderJob | str:
        """Return the job of a start, or a remark on a start that does not train."""
        if start.does:
            return start.does
        job = FolderJob(_name_of(start), start.place(), start, files={start.file: "starts it"})
        job.files |= dict.fromkeys(start.through, "on the way")
        self._used |= {*job.files}
        if start.problems or start.command is None:
            job.not_read = start.problems
            return job if self._may_train(start) else "not read, and no training by its name"
        job.folder = self._folder(start)
        program = self._program(start, job)
        script = self._script(program)
        if script is not None:  # its literals are the keys; the command's flags are the script's own
            script.launch, script.environment = start.command.launch, start.command.environment
        command = script or start.command
        with contextlib.chdir(self._listed.root / job.folder):
            try:
                self._find_files(command, job)
                imported = import_command(command)
                job.given = lower_keys(command)[0] | command.data
            except ConfigError as error:
                known = start.command.system is not None or start.command.config is not None
                if error.diagnostics[0].code == codes.CONFIG_IMPORT_SYSTEM.name and not known:
                    return self._unknown_program(start, program, job)
                job.not_read = error.diagnostics
                return job
            _count(imported, start)
            self._write(job, imported)
        config = program if script else self._here(command.config, job)
        self._lay_out(job, imported, None if script else command, config)
        return job

    def _script(self, program: str) -> Command | None:
        """Return what a Python file trains; None for one that builds no arguments of a trainer."""
        if not program or not _ARGUMENTS.search(self._listed.files[program].text):
            return None
        with contextlib.chdir(self._listed.root):
            try:
                return read_script(program)
            except ConfigError:
                return None

    def _of_script(self, file: str, command: Command) -> FolderJob:
        """Return the job of a Python script that nothing starts."""
        job = FolderJob(PurePosixPath(file).stem, f"{file} (no script here starts it)")
        words = [str(value) for value in flat(command.data).values() if isinstance(value, str)]
        job.folder, job.given = self._nearest(file, "", words), command.data
        with contextlib.chdir(self._listed.root / job.folder):
            try:
                imported = import_command(command)
            except ConfigError as error:
                job.not_read = error.diagnostics
                job.files[file] = "the program"
                return job
            self._write(job, imported)
        self._lay_out(job, imported, None, file)
        return job

    def _of_config(self, file: FolderFile) -> FolderJob | str:
        """Return the job of a config that nothing starts, or another kind of file; empty for an unrelated
        file."""
        data, _ = self._configs.read(file)
        system, instead = kind_of_config(file, data)
        if not system and not instead.startswith(NOT_IMPORTED):
            return instead
        job = FolderJob(PurePosixPath(file.path).stem, f"{file.path} (no script here starts it)")
        if not system:
            message, hint = not_imported(instead.removeprefix(NOT_IMPORTED))
            job.files[file.path] = "config"
            job.not_read = (codes.CONFIG_IMPORT_SYSTEM(message, f"{file.path}:1", "", hint),)
            return job
        words = [str(value) for value in flat(data).values() if isinstance(value, str)]
        job.folder = self._nearest(file.path, "", words)
        with contextlib.chdir(self._listed.root / job.folder):
            try:
                imported = import_config(os.path.relpath(file.path, job.folder or "."), system)
                job.given = data
            except ConfigError as error:
                job.not_read = error.diagnostics
                job.files[file.path] = f"config of {NAMES[system]}"
                return job
            self._write(job, imported)
        self._lay_out(job, imported, None, file.path)
        return job

    def _may_train(self, start: TrainingStart) -> bool:
        """Whether a start that could not be read probably trains, by its program or name."""
        command = start.command
        words = start.words if command is None else start.words[command.launch.program :][:2]
        if command is None and not words:
            return True
        if command is not None and (command.system is not None or command.config is not None):
            return True
        return TRAINS.search(" ".join(PurePosixPath(word).name for word in words[:40])) is not None

    def _unknown_program(self, start: TrainingStart, program: str, job: FolderJob) -> FolderJob | str:
        """Describe a start of the user's own script, whose arguments are unknown."""
        words = start.words[start.command.launch.program :] if start.command else ()
        name = words[0] if words else "a program"
        text = self._listed.files[program].text if program else ""
        if not (_ARGUMENTS.search(text) or TRAINS.search(PurePosixPath(name).name)):
            return f"it starts {name}, which is no training of a known program"
        message = f"{name} is a program of its own: its arguments do not tell what it trains"
        hint = "write a Paceline YAML (docs/how-to/configure.md)"
        if _ARGUMENTS.search(text):
            hint = f"its arguments stand in the program: paceline config import {program} --to ours.yaml"
        place = f"{start.holder}:{start.line}"
        job.not_read = (codes.CONFIG_IMPORT_COMMAND(message, place, " ".join(words)[:200], hint),)
        return job

    def _write(self, job: FolderJob, imported: Imported) -> None:
        """Write a YAML that Paceline reads without errors where the job runs."""
        title = f"made by `paceline migrate` from {job.place} ({imported.system})"
        composed, refused = accepted(imported, title, self._rules)
        job.imported, job.yaml = imported, composed.text
        algorithm = imported.settings.get("training.algorithm")
        stage = job.given.get("stage") or job.given.get("rl")
        job.trainer = str(stage or (algorithm.value if algorithm else "sft"))
        job.problems = list(refused or left_over(composed.text, self._rules))

    # ---- files

    def _lay_out(self, job: FolderJob, imported: Imported, command: Command | None, config: str) -> None:
        """Assign the verdicts to the files, and find the other files that the job uses."""
        holder = job.start.holder if job.start else config
        for finding in imported.findings.values():
            top = finding.key.partition(".")[0]
            of_command = command is not None and (
                top in command.data or finding.key in command.environment or " --" in finding.key
            )
            file, finding = self._of_accelerate(finding, job) or (
                config if config and not of_command else holder,
                finding,
            )
            job.findings.setdefault(file, []).append(finding)
        of_script = bool(config) and self._listed.files[config].kind == "python"
        if config:
            job.files[config] = "the program" if of_script else f"config of {imported.system}"
        texts: list[Json] = list(flat(command.data).values()) if command else []
        texts += [option.value for option in command.launch.options] if command else []
        if of_script:
            texts += flat(job.given).values()
        elif config:
            texts += flat(self._configs.read(self._listed.files[config])[0]).values()
        self._around(job, texts, config or holder)
        self._used |= {*job.files}

    def _of_accelerate(self, finding: Finding, job: FolderJob) -> tuple[str, Finding] | None:
        """Return Accelerate's file and its key for a finding that names both (``acc.yaml:3 debug``)."""
        place, _, key = finding.key.partition(" ")
        name, _, line = place.rpartition(":")
        if not key or not line.isdecimal() or not (file := self._here(name, job)):
            return None
        job.files[file] = "file of Accelerate"
        return file, replace(finding, key=key, line=int(line))

    def _around(self, job: FolderJob, texts: Iterable[Json], holder: str) -> None:
        """Find the files that values name: configs of DeepSpeed and Accelerate, data sets and their
        descriptions."""
        for text in texts:
            for name in _names_in(text):
                file = self._here(name, job)
                at = self._listed.root / job.folder / name
                if not file and not at.exists() and _LOCAL.fullmatch(name) and "://" not in name:
                    job.missing.append(name)
                elif file and file not in job.files:
                    self._beside(job, file)
                elif not file and at.is_file() and at.resolve().is_relative_to(self._listed.root):
                    of_rows = _LOCAL.fullmatch(name) is not None
                    job.files[str(PurePosixPath(job.folder) / name)] = "data" if of_rows else "named by it"
                elif not file and (info := self._here(f"{name}/dataset_info.json", job)):
                    job.files[info] = "data sets"
        beside = str(PurePosixPath(holder).parent / "dataset_info.json")
        for info in (beside, str(PurePosixPath(job.folder) / "data" / "dataset_info.json")):
            if info in self._listed.files and job.imported and job.imported.system == "LLaMA-Factory":
                job.files[info] = "data sets"

    def _beside(self, job: FolderJob, file: str) -> None:
        """Add a file that the job uses; DeepSpeed's and Accelerate's with the verdicts on their keys."""
        held = self._listed.files[file]
        data = self._configs.read(held)[0] if held.kind == "config" else {}
        system = system_of(data) if data else None
        if system not in ("deepspeed", "accelerate"):
            job.files[file] = (
                "the program" if held.kind == "python" else "data" if not data else "named by it"
            )
            return
        job.files[file] = f"file of {NAMES[system]}"
        if file not in job.findings:
            with contextlib.chdir(self._listed.root):
                try:
                    findings = import_config(file, system).findings.values()
                except ConfigError as error:
                    job.problems += error.diagnostics
                    return
            job.findings[file] = list(findings)
        if system == "accelerate":
            inner = flat(data).get("deepspeed_config.deepspeed_config_file")
            self._around(job, [inner], file)

    def _find_files(self, command: Command, job: FolderJob) -> None:
        """Replace a command's paths of another machine by the files here."""
        written = command.config in command.files
        if command.config is not None and not written and (file := self._here(command.config, job)):
            command.config = os.path.relpath(file, job.folder or ".")
        for number, option in enumerate(command.launch.options):
            if option.name in ("config_file", "hostfile") and (file := self._here(option.value or "", job)):
                moved = os.path.relpath(file, job.folder or ".")
                command.launch.options[number] = replace(option, value=moved)

    def _here(self, name: str | None, job: FolderJob) -> str:
        """Return the folder's file to which a path refers where the job runs; or empty."""
        return resolve(name, f"{job.folder}/x" if job.folder else "x", "", self._listed) if name else ""

    def _program(self, start: TrainingStart, job: FolderJob) -> str:
        """Return the Python file that a start runs, if it is here."""
        words = start.words[start.command.launch.program :] if start.command else ()
        file = self._here(words[0], job) if words and words[0].endswith(".py") else ""
        if file:
            job.files[file] = "the program"
            self._used.add(file)
        return file

    def _folder(self, start: TrainingStart) -> str:
        command = start.command
        words = [str(value) for value in (flat(command.data).values() if command else ())]
        words += [command.config] if command and command.config else []
        words += [option.value or "" for option in command.launch.options] if command else []
        return self._nearest(start.holder, start.folder, [*words, *start.words])

    def _nearest(self, holder: str, folder: str, words: list[str]) -> str:
        """Return the folder, at or around a file, from which most of the relative paths exist."""
        paths = {word for word in words if re.search(r"[./]", word) and not word.startswith(("/", "~", "-"))}

        def hits(base: str) -> int:
            return sum(_exists(self._listed.root / base / path) for path in paths)

        matches = max(bases(holder, folder), key=hits)  # of several the first
        return "" if matches == "." or not (self._listed.root / matches).is_dir() else matches


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _names_in(value: Json) -> list[str]:
    """Return the possible paths in a value: a text, or its parts between commas."""
    if isinstance(value, list):
        return [name for item in value if isinstance(item, str) for name in _names_in(item)]
    if not isinstance(value, str) or len(value) > 4096 or "\n" in value:
        return []
    return [part.strip() for part in value.split(",") if part.strip() not in ("", ".", "..", "/")]


def _name_of(start: TrainingStart) -> str:
    """Return a job's name, from its config or else from its start."""
    config = start.command.config if start.command else None
    if config:
        return PurePosixPath(config).stem
    label = start.label.rpartition(" ")[2]
    return label or PurePosixPath(start.holder).stem


def _count(imported: Imported, start: TrainingStart) -> None:
    """Take nodes and processes from a manifest where the command itself does not say them."""
    launchers = start.command.launch.launchers if start.command else []
    for path, (count, key, line) in start.counts.items():
        before = imported.settings.get(path)
        default = before is not None and not before.line
        if (before is None or default) and not (path == "launch.nproc" and launchers == ["python"]):
            imported.settings[path] = Setting(count, key, line)
            imported.findings[key] = Finding(key, count, line, KeyVerdict.MAPPED, (path,))
