"""Keys that are taken and set nothing, each with the reason that the reference and the plan give.

A key that the guides of the project describe is never among them (``tests/unit/config/test_keys_act.py`` holds the list).
"""

from __future__ import annotations

from collections.abc import Mapping

IDLE: Mapping[str, str] = {
    "model.low_cpu_mem": "weights are always streamed from disk tensor by tensor; Transformers 5 has no other way",
}
