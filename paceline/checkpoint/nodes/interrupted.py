"""What a kill before the commit has left on some nodes: the next start removes it. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from paceline.checkpoint.layout import trash_name
from paceline.checkpoint.nodes.found import NodeLook
from paceline.checkpoint.nodes.survey import Lacking, Survey
from paceline.checkpoint.refused import skipped
from paceline.checkpoint.retain import discard, is_being_read
from paceline.checkpoint.together import CheckpointWorld, together
from paceline.core.diagnostics import Diagnostic


def remove_interrupted(
    survey: Survey, looks: Mapping[int, NodeLook], disk: int, ranks: CheckpointWorld
) -> tuple[Survey, list[Diagnostic]]:
    """Remove, on each disk, the parts of checkpoints that were never committed; return what is left, and a
    warning for each. Collective; ``disk`` is this rank's. One that is being read stays.
    """
    halves = survey.interrupted(part for look in looks.values() for part in look["begun"])
    if not halves:
        return survey, []
    folder, mine = Path(looks[disk]["folder"]), survey.folders(disk) if disk == ranks.rank else {}

    def remove() -> list[str]:
        parts = [mine[one.name, one.digest] for one in halves if (one.name, one.digest) in mine]
        return [part for part in parts if _removed(folder / part)]

    gone = together(ranks, remove, folder, "what an interrupted save has left cannot be removed")
    parts = {at: [p for p in look["parts"] if p["folder"] not in gone[at]] for at, look in looks.items()}
    left = Survey(parts)
    return left, [_note(one, folder) for one in halves if one not in left.lacking]


def _removed(path: Path) -> bool:
    """Remove a folder, renamed first as any checkpoint; False if somebody reads it."""
    with suppress(OSError):
        if not path.is_symlink() and not is_being_read(path):
            trash = path.with_name(trash_name(path.name, os.urandom(6).hex()))
            os.rename(path, trash)
            discard(trash)
            return True
    return False


def _note(one: Lacking, folder: Path) -> Diagnostic:
    why = "its save was interrupted before all nodes had it; what it left was removed"
    return skipped(one.name, why, str(folder), "an earlier one is taken")
