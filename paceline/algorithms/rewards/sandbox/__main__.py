"""``python -m paceline.algorithms.rewards.sandbox``: whether programs can be shut in here, as a line of JSON; nothing heavy is imported."""

from __future__ import annotations

import json
import sys

from paceline.algorithms.rewards.code import check_isolation
from paceline.core.errors import ConfigError
from paceline.launch.outlet import redacted


@redacted
def main() -> int:
    """Prints ``{"refused": words}``; the words are empty where it works."""
    try:
        check_isolation()
    except ConfigError as error:
        print(json.dumps({"refused": error.diagnostics[0].found}))
        return 0
    print(json.dumps({"refused": ""}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
