"""Run ``python -m paceline.launch.run_module MODULE …`` with signal handlers set before slow imports."""

from __future__ import annotations

import runpy
import sys

from paceline.launch.program import program


@program
def main() -> int:
    """Run the module as ``python -m MODULE …`` would, and return its exit code."""
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
