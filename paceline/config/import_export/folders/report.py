"""The report on a folder: job by job and file by file, as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from paceline.config.import_export.folders.form_jobs import FolderJob, MigratedFolder
from paceline.config.import_export.folders.our_command import OurCommand, our_command
from paceline.config.import_export.sizes import measured
from paceline.config.import_export.verdicts import Finding, KeyVerdict, shortened
from paceline.config.source import shown
from paceline.core.json_types import Json, JsonObject
from paceline.core.security.secrets import SHAPED

_SHOWN = {KeyVerdict.DIFFERS: "differs", KeyVerdict.LOST: "lost"}


def command_of(job: FolderJob, migration: MigratedFolder, to: Path | None) -> OurCommand | None:
    """Return our command for a job whose YAML lies in ``to``; None for a job that was not read."""
    if job.imported is None:
        return None
    folder = migration.listed.root / job.folder
    yaml = f"{job.name}.yaml"
    near = os.path.relpath(folder)
    goes = "" if near == "." else str(folder) if near.startswith("..") else near
    if to is not None:
        yaml = os.path.relpath(to.absolute() / yaml, folder)
    return our_command(job.start, job.imported, yaml, goes)


def report_text(migration: MigratedFolder, to: Path | None, *, every: bool = False) -> str:
    """Return the report; ``to``: where the YAMLs are; ``every``: list kept keys, too."""
    parts = len({file for job in migration.jobs for file in job.files})
    listed = migration.listed
    jobs = _count(len(migration.jobs), "job")
    lines = [f"{migration.path}: {jobs} of {_count(parts, 'file')}"]
    for job in migration.jobs:
        lines += ["", *_of_job(job, migration, to, every)]
    if migration.beside:
        lines += [
            "",
            "beside the jobs:",
            *(f"  {file}: {message}" for file, message in migration.beside.items()),
        ]
    if listed.skipped:
        shown_files = list(listed.skipped.items())[:40]
        lines += ["", "not opened:", *(f"  {file}: {why}" for file, why in shown_files)]
        lines += [f"  and {len(listed.skipped) - 40:,} more"] if len(listed.skipped) > 40 else []
    others = listed.others + len(listed.files) - len({*listed.files} & _named(migration))
    lines += ["", f"{_count(others, 'other file')} with no part in a job"] if others else []
    return SHAPED.sub("***", "\n".join(lines))


def _named(migration: MigratedFolder) -> set[str]:
    return {*(file for job in migration.jobs for file in job.files), *migration.beside}


def _of_job(job: FolderJob, migration: MigratedFolder, to: Path | None, every: bool) -> Iterator[str]:
    system = f", {job.imported.system}" if job.imported else ""
    yield f"job {job.name} ({job.place}{system})"
    for file, message in job.files.items():
        yield f"  {file}: {message}{_counts(job.findings.get(file, []))}"
        for verdict, word in _SHOWN.items():
            yield from _findings(job, file, verdict, word, every)
        if every:
            for verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT):
                yield from _findings(job, file, verdict, verdict.value, every)
    for name in dict.fromkeys(job.missing):
        yield f"  {name}: named, and not in the folder"
    for problem in (*job.not_read, *job.problems):
        yield from (f"  {line}" for line in problem.render().split("\n"))
    if job.imported is None:
        yield "  not imported"
        return
    if job.folder:
        yield f"  runs in: {job.folder} (paths in it mean files there)"
    if job.lacks:
        yield f"  to add to our YAML: {', '.join(job.lacks)} (the program itself names them)"
    state = "fine" if not job.problems else f"{_count(len(job.problems), 'finding')} above to mend"
    name = str(to / job.name if to else job.name)
    yield f"  our YAML: {name}.yaml: {state}{'' if to else ' (--to DIR writes it)'}"
    if command := command_of(job, migration, to):
        yield f"  our command: {command.text}"
        if command.sbatch:
            yield f"  our script for Slurm: {name}.sbatch, with the directives of theirs"
        yield from (f"    {note}" for note in command.notes)


def _findings(job: FolderJob, file: str, verdict: KeyVerdict, word: str, every: bool) -> Iterator[str]:
    matches = [finding for finding in job.findings.get(file, []) if finding.verdict is verdict]
    listed, left_out = (matches, 0) if every else shortened(matches)
    for finding in listed:
        place = f"{file}:{finding.line}" if finding.line else "default"
        to = f" -> {', '.join(finding.to)}" if finding.to else ""
        says = f": {finding.says}" if finding.says else ""
        size = measured(job.imported.system, finding.key, finding.says) if job.imported else ""
        says += f" [measured: {size}]" if size else ""
        yield f"    {word}: {place}: {finding.key}: {shown(finding.key, finding.value, 60)}{to}{says}"
    if left_out:
        yield f"    {word}: and {left_out:,} more (--all)"


def _counts(findings: list[Finding]) -> str:
    """Return how many keys of a file are kept, differ, and are lost."""
    written = [finding for finding in findings if finding.line]
    if not findings:
        return ""
    counts = {word: sum(f.verdict is verdict for f in findings) for verdict, word in _SHOWN.items()}
    kept = sum(f.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT) for f in written)
    return f": {kept} kept, {counts['differs']} differ, {counts['lost']} lost"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def report_json(migration: MigratedFolder, to: Path | None) -> JsonObject:
    """Return the report as plain JSON types, secrets masked."""
    jobs: list[Json] = []
    for job in migration.jobs:
        command = command_of(job, migration, to)
        made: JsonObject = (
            {"text": command.text, "sbatch": command.sbatch, "notes": list(command.notes)} if command else {}
        )
        files: list[Json] = [
            {"file": file, "what": message, "keys": [f.to_json() for f in job.findings.get(file, [])]}
            for file, message in job.files.items()
        ]
        jobs.append(
            {
                "name": job.name,
                "place": job.place,
                "system": job.imported.system if job.imported else None,
                "folder": job.folder,
                "files": files,
                "lacks": list(job.lacks),
                "missing": list(dict.fromkeys(job.missing)),
                "problems": [problem.to_json() for problem in (*job.not_read, *job.problems)],
                "yaml": job.yaml or None,
                "command": made or None,
                "loses": job.loses,
            }
        )
    return {
        "path": str(migration.path),
        "loses": migration.loses,
        "jobs": jobs,
        "beside": dict(migration.beside),
        "skipped": dict(migration.listed.skipped),
        "others": migration.listed.others,
    }
