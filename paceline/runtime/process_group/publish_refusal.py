"""``python -m paceline.runtime.process_group.publish_refusal``: tell other nodes that this one is refused."""

from __future__ import annotations

import sys

from paceline.core.errors import PacelineError
from paceline.launch.environment.guide_variables import current
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted
from paceline.launch.run_secret import read_secret
from paceline.runtime.failures.message import parsed_failure
from paceline.runtime.process_group.rendezvous import refuse
from paceline.runtime.rank_env import RankEnv

HOST_SECONDS = 60.0  # node 0 answers for the others, which may still start; it ends once all have heard
SECONDS = 20.0  # another node waits for node 0


@redacted
@ended
def main() -> int:
    """Publish the error on stdin as this node's first rank."""
    message = parsed_failure(sys.stdin.read())
    if message is not None:
        environ = current()
        env = RankEnv.from_environ(environ)
        seconds = HOST_SECONDS if env.rank == 0 else SECONDS
        refuse(env, read_secret(environ), PacelineError(message[1]), seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
