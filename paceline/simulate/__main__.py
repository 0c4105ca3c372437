"""``python -m paceline.simulate JOB ANSWER``: a plan and a model's config in, what a simulated step holds and sends out (JSON files)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paceline.launch.outlet import redacted


@redacted
def main(job: str, answer: str) -> int:
    """Writes what was found, or ``{"failed": why}``: torch's own limits are told, not raised."""
    asked = json.loads(Path(job).read_text(encoding="utf-8"))
    try:
        from paceline.plan.plan import Plan
        from paceline.simulate.run import simulate

        found: dict[str, Any] = simulate(Plan.from_json(asked["plan"]), asked["config"])
    except ImportError as error:
        found = {"missing": str(error)}
    except Exception as error:  # whatever torch cannot do without numbers
        lines = [line for line in str(error).splitlines() if line.strip()]
        found = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
