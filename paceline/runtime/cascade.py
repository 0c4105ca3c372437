"""Telling a rank's own failure from the echo of another's."""

from __future__ import annotations

import torch.distributed as dist

from paceline.core.errors import PacelineError

# What a healthy rank sees when its peer is gone or silent (gloo, nccl, the store). An error that a rank can meet alone (no interface, /dev/shm full,
# memory that cannot be locked: ncclSystemError) is no echo, or every rank would say that another one is to blame.
CASCADE_WORDS = (
    "connection reset",
    "connection closed",
    "connection was likely closed",
    "broken pipe",
    "timed out waiting",
    "wait timeout",
    "socket timeout",
    "socket closed",
    "remote peer",
    "peer closed",
    "remote process exited",
    "ncclremoteerror",
    "watchdog caught collective operation timeout",
    "some nccl operations have failed or timed out",
    "nccl communicator was aborted",
    "failed to recv",
    "sendbytes failed",
    "recvvalue failed",
    "gloo/transport",
    "childfailederror",
)
# Of these, what a peer that is there and does not answer looks like
_TIMEOUT_WORDS = ("timed out", "wait timeout", "socket timeout", "operation timeout")
# Own failures whose texts have words of an echo in them
ROOT_WORDS = (
    "connectfullmesh",  # the ranks have met and cannot connect: an address or a firewall
    "ncclsystemerror",
    "no socket interface found",
    "retrieving ncclunique",
    "failed to connect to any network address",
    "while trying to connect to",
    "failed to listen",
)


def is_cascade(exc: BaseException) -> bool:
    """Whether ``exc`` reads like the echo of another rank's failure rather than a failure of this one."""
    if isinstance(exc, PacelineError):
        return False
    text = str(exc).lower()
    if any(word in text for word in ROOT_WORDS):
        return False
    if isinstance(exc, ConnectionError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return isinstance(exc, RuntimeError) and any(word in text for word in CASCADE_WORDS)


def is_timeout(exc: BaseException) -> bool:
    """Whether an echo comes from a peer that is silent rather than gone."""
    return is_cascade(exc) and any(word in str(exc).lower() for word in _TIMEOUT_WORDS)
