"""What is said of the checkpoints on the nodes' disks: the one that is taken, and what the others lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint import codes
from paceline.checkpoint.errors import skipped
from paceline.checkpoint.format.verify_files import read_manifest
from paceline.checkpoint.node_local.inventory import DiskPart, Lacking, Whole, files_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.rules import codes as rules_codes

_MOST = 5  # names in one message


class NodeLook(TypedDict):
    """What the leader of a disk tells: its host, the folder it looked in (and how that follows from the path
    that the user gave; empty for ``latest``, ``auto`` and URLs), what is there, what saves have left that
    were not published (``begun``), and how many folders of that kind there are (``staged``).
    """

    host: str
    folder: str
    relation: str
    parts: list[DiskPart]
    begun: list[DiskPart]
    staged: int


def names_of(lacking: Sequence[Lacking], look: NodeLook, folder: Path) -> dict[str, str]:
    """Return digest → the names of the files that no disk has, of the manifests that this disk has."""
    found = {}
    for part in look["parts"]:
        for one in lacking:
            if part["digest"] == one.digest and one.missing:
                try:
                    names = files_of(read_manifest(folder / part["folder"]))
                except CheckpointError:
                    continue
                missing = [names[number] for number in one.missing]
                more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
                found[one.digest] = f"no node has {', '.join(missing[:_MOST])}{more}"
    return found


def passed_over(one: Lacking, why: str, taken: Whole) -> Diagnostic:
    """Return the warning that a newer checkpoint is not taken."""
    again = one.step - taken.step
    steps = f"; {again} step{'s are' if again > 1 else ' is'} trained again" if again > 0 else ""
    hint = (
        "start with the node that has the files, or copy its step folder to one of these nodes;"
        f" resuming from {taken.name} instead{steps}"
    )
    return skipped(one.name, why, one.name, hint, one.problem)


def chosen_note(one: Whole, path: Path, num_disks: int) -> Diagnostic:
    """Return the note on the checkpoint that is taken."""
    parts = len(one.folders)
    what = f"resuming from {one.name}, whole over the disks of {parts} of {num_disks} nodes"
    return codes.RESUME_CHOSEN(what, str(path), severity=Severity.NOTE)


def no_whole_one(
    lacking: Sequence[tuple[Lacking, str]],
    damage: Sequence[CheckpointError],
    looks: Mapping[int, NodeLook],
    where: str,
    run: RunDir,
) -> CheckpointError:
    """Return the error that no checkpoint is whole: what is missing, who was asked, what to do."""
    listed = [f"{one.name}: {why}" for one, why in reversed(lacking)]
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
