"""``python -m paceline.launch.entered MODULE …``: runs a program that imports for seconds, so that a signal in that time ends it in order, too."""

from __future__ import annotations

import runpy
import sys

from paceline.launch.ending import ended
from paceline.launch.outlet import redacted


@redacted
@ended
def main() -> int:
    """The module's own exit, as ``python -m MODULE …``."""
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
