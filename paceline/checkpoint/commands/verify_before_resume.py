"""Verify the checkpoint to resume from, if it is small, and write its errors as JSON. No torch.

``python -m paceline.checkpoint.commands.verify_before_resume WHERE RUN ANSWER [several]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.checkpoint.load.find_checkpoint import BEFORE_BYTES, at_its_key, find_checkpoint, lies_elsewhere
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted


@ended
@redacted
def main(where: str, run: str, answer: str, nodes: str = "") -> int:
    """Verify the checkpoint before the ranks start.

    A large one takes as long to read as to load, so the ranks verify it, as they read it. With several
    ``nodes`` the others may have what is missing here.
    """
    try:
        find_checkpoint(where, RunDir.at(run), most_bytes=BEFORE_BYTES)
        found = []
    except CheckpointError as error:
        found = [] if nodes and lies_elsewhere(error.diagnostics) else at_its_key(error)
    Path(answer).write_text(json.dumps([finding.to_json() for finding in found]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
