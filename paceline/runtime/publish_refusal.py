"""Publish to other nodes that this one does not start: ``python -m paceline.runtime.publish_refusal``."""

from __future__ import annotations

import sys

from paceline.core.errors import PacelineError
from paceline.launch.ending import ended
from paceline.launch.environ import current
from paceline.launch.outlet import redacted
from paceline.launch.secret import read_secret
from paceline.runtime.meeting import refuse
from paceline.runtime.message import parsed_failure
from paceline.runtime.rank_env import RankEnv

SECONDS = 5.0  # for ranks that wait already; others say for whom they wait


@redacted
@ended
def main() -> int:
    """Publish the error on stdin as this node's first rank."""
    message = parsed_failure(sys.stdin.read())
    if message is not None:
        environ = current()
        refuse(RankEnv.from_environ(environ), read_secret(environ), PacelineError(message[1]), SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
