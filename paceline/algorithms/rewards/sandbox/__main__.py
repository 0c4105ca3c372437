"""``python -m paceline.algorithms.rewards.sandbox``: print as JSON whether programs can be isolated here.

Imports nothing heavy.
"""

from __future__ import annotations

import json
import sys

from paceline.algorithms.rewards.code_reward import check_isolation
from paceline.core.errors import ConfigError
from paceline.launch.redacted_output import redacted


@redacted
def main() -> int:
    """Print ``{"refused": reason}``; the reason is empty if it works."""
    try:
        check_isolation()
    except ConfigError as error:
        print(json.dumps({"refused": error.diagnostics[0].found}))
        return 0
    print(json.dumps({"refused": ""}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
