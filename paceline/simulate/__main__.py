"""Simulate one step: ``python -m paceline.simulate JOB ANSWER``.

JOB: a plan and a model's config; ANSWER: memory and collectives of the step (JSON files).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.core.json_types import JsonObject
from paceline.launch.program import redacted


@redacted
def main(job: str, answer: str) -> int:
    """Write the result, or ``{"failed": why}``: limits of torch are reported, not raised."""
    request = json.loads(Path(job).read_text(encoding="utf-8"))
    try:
        from paceline.plan.plan import Plan
        from paceline.simulate.run import simulate

        result: JsonObject = simulate(
            Plan.from_json(request["plan"]), request["config"], request["head_chunk_bytes"]
        )
    except ImportError as error:
        result = {"missing": str(error)}
    except Exception as error:  # what torch cannot do on fake tensors
        lines = [line for line in str(error).splitlines() if line.strip()]
        result = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    Path(answer).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
