"""Keys that are accepted without effect, each with the reason shown in the reference and the plan.

No key that the project's guides describe is among them (``tests/unit/config/test_keys_act.py`` checks the
list).
"""

from __future__ import annotations

from collections.abc import Mapping

IDLE: Mapping[str, str] = {
    "model.low_cpu_mem": (
        "weights are always streamed from disk tensor by tensor; Transformers 5 has no other mode"
    ),
}
