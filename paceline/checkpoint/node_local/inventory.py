"""The parts of a run's checkpoints on the nodes' disks, the checkpoints that are whole over all disks, and
messages."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint import codes
from paceline.checkpoint.errors import skipped
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import (
    check_foreign,
    check_name,
    entries,
    is_step_name,
    read_manifest,
    step_of,
    step_of_folder,
)
from paceline.checkpoint.save.retention import manifest_digest
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.rules import codes as rules_codes


class DiskPart(TypedDict):
    """One disk's folder of a checkpoint, as sent between ranks.

    - ``name``: the name of the step
    - ``folder``: its folder's name, which differs while a save replaces it
    - ``digest``: of the manifest
    - ``have``: the indexes of its sorted ``files`` that are here with the saved size
    - ``trash``: it is being removed
    - ``problem``: why its manifest cannot be used (then the other fields are unknown)
    """

    name: str
    folder: str
    digest: str
    sequence: int
    files: int
    have: list[int]
    trash: bool
    problem: JsonObject | None


@dataclass(frozen=True)
class _OneManifest:
    """A checkpoint by its folder's name and its manifest's digest."""

    name: str
    digest: str
    sequence: int

    @property
    def step(self) -> int:
        """The step in its name; -1 for a copy with another name."""
        return step_of(self.name) if is_step_name(self.name) else -1


@dataclass(frozen=True)
class CompleteCheckpoint(_OneManifest):
    """A checkpoint of which every file is on some disk; ``folders``: the folder's name by disk."""

    folders: Mapping[int, str]
    have: Mapping[int, frozenset[int]]

    def holders(self, number: int) -> list[int]:
        """Return the disks that have a file."""
        return [disk for disk in sorted(self.have) if number in self.have[disk]]


@dataclass(frozen=True)
class IncompleteCheckpoint(_OneManifest):
    """A checkpoint that is not whole: the numbers of the files that no disk has, or the manifest's error."""

    missing: tuple[int, ...]
    problem: Diagnostic | None = None


class Survey:
    """The parts on all disks, by the disk's leader."""

    def __init__(self, parts: Mapping[int, Sequence[DiskPart]]) -> None:
        self.parts = parts
        self.whole, self.lacking = _judged(parts)

    @property
    def steps(self) -> set[int]:
        """The steps of the complete checkpoints."""
        return {checkpoint.step for checkpoint in self.whole}

    @property
    def newest_sequence(self) -> int:
        """The largest sequence that any disk has seen; 0 if none."""
        return max((part["sequence"] for part in self._all()), default=0)

    def folders(self, disk: int) -> dict[tuple[str, str], str]:
        """Return (checkpoint name, manifest digest) → folder name on a disk."""
        of = (part for part in self.parts.get(disk, ()) if not part["trash"])
        return {(part["name"], part["digest"]): part["folder"] for part in of}

    def needless(self, disk: int) -> list[str]:
        """Return folders of a disk that no complete checkpoint needs: replaced by a complete one, or being
        removed.
        """
        complete = {checkpoint.name: checkpoint for checkpoint in self.whole}
        leaving = {(part["name"], part["digest"]) for part in self._all() if part["trash"]}
        kept = {(checkpoint.name, checkpoint.digest) for checkpoint in self.whole}
        folders = []
        for part in self.parts.get(disk, ()):
            key = (part["name"], part["digest"])
            if part["trash"] or key in kept:
                continue
            replaced = part["folder"] != part["name"] and part["name"] in complete
            older = replaced and part["sequence"] < complete[part["name"]].sequence  # 0 where half is removed
            # Somewhere it is in the trash: a removal that a kill interrupted, to be finished here.
            if older or (key in leaving and part["problem"] is None):
                folders.append(part["folder"])
        return folders

    def interrupted(self, begun: Iterable[DiskPart]) -> list[IncompleteCheckpoint]:
        """Return the checkpoints of saves that ended before their commit. ``begun``: unpublished leftovers of
        saves on the disks.

        Rank 0's rename comes last, so a disk with an unpublished part shows that rank 0 did not commit. All
        missing files must also be there, so that an unknown checkpoint is never mistaken for this one.
        """
        staged: dict[tuple[str, str], set[int]] = {}
        for part in begun:
            if part["problem"] is None:
                staged.setdefault((part["name"], part["digest"]), set()).update(part["have"])
        return [
            checkpoint
            for checkpoint in self.lacking
            if checkpoint.missing
            and staged.get((checkpoint.name, checkpoint.digest), set()).issuperset(checkpoint.missing)
        ]

    def _all(self) -> Iterable[DiskPart]:
        return (part for disk in self.parts.values() for part in disk)


def parts_in(folder: Path, only: Collection[str] | None = None) -> list[DiskPart]:
    """Return the checkpoint parts in one disk's ``checkpoints`` folder; with ``only``, those with these
    names."""
    parts = []
    for name in _folders(folder):
        any_name = only is not None or is_step_name(name)
        step = name if any_name else step_of_folder(name, "replaced", "trash")
        if step is not None and (only is None or name in only):
            parts.append(_part(folder / name, step, trash=step_of_folder(name, "trash") is not None))
    return parts


def begun_in(folder: Path) -> list[DiskPart]:
    """Return the leftovers of unpublished saves in one disk's ``checkpoints`` folder."""
    steps = {name: step_of_folder(name, "staging") for name in _folders(folder)}
    return [_part(folder / name, step, trash=False) for name, step in steps.items() if step is not None]


def files_of(manifest: Manifest) -> list[str]:
    """Return the names of a checkpoint's files in the order of their numbers."""
    return sorted(manifest.files)


def _part(path: Path, name: str, *, trash: bool) -> DiskPart:
    part: DiskPart = {
        "name": name,
        "folder": path.name,
        "digest": "",
        "sequence": 0,
        "files": 0,
        "have": [],
        "trash": trash,
        "problem": None,
    }
    try:
        manifest = read_manifest(path)
        if not trash:
            check_name(path, manifest)
            check_foreign(path)
    except CheckpointError as error:
        part["problem"] = error.diagnostics[0].to_json()
        return part
    part["digest"] = manifest_digest(path) or ""
    part["sequence"], part["files"] = manifest.sequence, len(manifest.files)
    part["have"] = [
        number for number, file in enumerate(files_of(manifest)) if _is_there(path, file, manifest)
    ]
    return part


def _is_there(checkpoint: Path, name: str, manifest: Manifest) -> bool:
    """Whether a file is here with its size; links are followed, and checked when the file is opened."""
    try:
        info = os.stat(checkpoint / name)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_size == manifest.files[name].bytes


def _folders(folder: Path) -> list[str]:
    return entries(folder, os.DirEntry.is_dir)


def _judged(
    parts: Mapping[int, Sequence[DiskPart]],
) -> tuple[list[CompleteCheckpoint], list[IncompleteCheckpoint]]:
    """Return the complete checkpoints, one per step, and the others; both oldest first."""
    sides: dict[tuple[str, str], dict[int, DiskPart]] = {}
    lacking: list[IncompleteCheckpoint] = []
    for disk, of_disk in parts.items():
        for part in of_disk:
            if part["trash"]:
                continue
            if part["problem"] is not None:
                lacking.append(
                    IncompleteCheckpoint(part["name"], "", -1, (), Diagnostic.from_json(part["problem"]))
                )
                continue
            sides.setdefault((part["name"], part["digest"]), {})[disk] = part
    complete: dict[str, CompleteCheckpoint] = {}
    for (name, digest), of in sides.items():
        first = next(iter(of.values()))
        have = {disk: frozenset(part["have"]) for disk, part in of.items()}
        # Files as numbers: names of thousands of shards from every node would fill the messages.
        missing = sorted(set(range(first["files"])) - frozenset().union(*have.values()))
        if missing:
            lacking.append(IncompleteCheckpoint(name, digest, first["sequence"], tuple(missing)))
            continue
        checkpoint = CompleteCheckpoint(
            name, digest, first["sequence"], {disk: part["folder"] for disk, part in of.items()}, have
        )
        # The same step saved twice: the later save counts.
        if name not in complete or complete[name].sequence < checkpoint.sequence:
            complete[name] = checkpoint
    return (
        sorted(complete.values(), key=lambda checkpoint: (checkpoint.sequence, checkpoint.step)),
        sorted(lacking, key=lambda checkpoint: (checkpoint.sequence, checkpoint.name)),
    )


_MOST = 5  # names in one message


class NodeInventory(TypedDict):
    """The report of a disk's leader: its host, the folder it looked in, and the checkpoints there. The report
    also holds how the folder follows from the user's path (empty for ``latest``, ``auto`` and URLs).
    ``begun`` holds leftovers of unpublished saves; ``staged`` counts such folders.
    """

    host: str
    folder: str
    relation: str
    parts: list[DiskPart]
    begun: list[DiskPart]
    staged: int


def names_of(lacking: Sequence[IncompleteCheckpoint], look: NodeInventory, folder: Path) -> dict[str, str]:
    """Return manifest digest → names of files that no disk has, for the manifests on this disk."""
    reasons = {}
    for part in look["parts"]:
        for checkpoint in lacking:
            if part["digest"] == checkpoint.digest and checkpoint.missing:
                try:
                    names = files_of(read_manifest(folder / part["folder"]))
                except CheckpointError:
                    continue
                missing = [names[number] for number in checkpoint.missing]
                more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
                reasons[checkpoint.digest] = f"no node has {', '.join(missing[:_MOST])}{more}"
    return reasons


def passed_over(checkpoint: IncompleteCheckpoint, why: str, taken: CompleteCheckpoint) -> Diagnostic:
    """Return the warning that a newer checkpoint is skipped."""
    again = checkpoint.step - taken.step
    steps = f"; {again} step{'s are' if again > 1 else ' is'} trained again" if again > 0 else ""
    return skipped(
        checkpoint.name,
        why,
        checkpoint.name,
        "start with the node that has the files, or copy its step folder to one of these nodes;"
        f" resuming from {taken.name} instead{steps}",
        checkpoint.problem,
    )


def chosen_note(checkpoint: CompleteCheckpoint, path: Path, num_disks: int) -> Diagnostic:
    """Return the note on the chosen checkpoint."""
    parts = len(checkpoint.folders)
    return codes.RESUME_CHOSEN(
        f"resuming from {checkpoint.name}, whole over the disks of {parts} of {num_disks} nodes",
        str(path),
        severity=Severity.NOTE,
    )


def no_whole_one(
    lacking: Sequence[tuple[IncompleteCheckpoint, str]],
    damage: Sequence[CheckpointError],
    looks: Mapping[int, NodeInventory],
    where: str,
    run: RunDir,
) -> CheckpointError:
    """Return the error that no checkpoint is complete: missing files, nodes asked, remedy."""
    listed = [f"{checkpoint.name}: {why}" for checkpoint, why in reversed(lacking)]
    listed += [f"{error.diagnostics[0].what}: {error.diagnostics[0].found}" for error in damage]
    hosts = ", ".join(f"{look['host']} (rank {disk})" for disk, look in sorted(looks.items())[:16])
    return CheckpointError(
        rules_codes.RESUME_ONLY_INCOMPLETE(
            f"the nodes do not share the checkpoints ({where}), and have none of them whole together;"
            " nothing was deleted",
            str(run.checkpoints),
            f"{'; '.join(listed[:_MOST])}. Asked: {hosts}",
            "start with the node that has the missing files, or copy its step folders to one of these nodes"
            " (files of one manifest belong together); or set another training.output_dir to start anew",
            evidence={"asked": [look["host"] for look in looks.values()]},
        )
    )
