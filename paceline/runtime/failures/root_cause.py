"""Distinguish a rank's own failure from the consequence of another rank's."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch.distributed as dist

from paceline.core.errors import PacelineError

# Messages that a healthy rank gets when its peer is gone or silent (gloo, nccl, the store). An error that a
# rank can have by itself (no interface, /dev/shm full, memory that cannot be locked: ncclSystemError) does
# not count, or every rank would blame another one.
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
_TALK = (
    "paceline/runtime/",
    "paceline/checkpoint/node_local/",
    "torch/distributed/",
)  # folders of their code
# Those of a peer that exists but does not respond
_TIMEOUT_WORDS = ("timed out", "wait timeout", "socket timeout", "operation timeout")
# A rank's own failures whose messages contain such words
ROOT_WORDS = (
    "connectfullmesh",  # the ranks have found each other but cannot connect: an address or a firewall
    "ncclsystemerror",
    "no socket interface found",
    "retrieving ncclunique",
    "failed to connect to any network address",
    "while trying to connect to",
    "failed to listen",
)


def is_cascade(exc: BaseException) -> bool:
    """Whether ``exc`` looks like a consequence of another rank's failure."""
    # Our own errors name their cause; their texts may well quote such words.
    if isinstance(exc, PacelineError):
        return False
    text = str(exc).lower()
    if any(word in text for word in ROOT_WORDS):
        return False
    # After ROOT_WORDS: a rank that cannot listen gets the same class of error.
    if isinstance(exc, dist.DistNetworkError | dist.DistStoreError):
        return True
    if isinstance(exc, ConnectionError):  # a closed pipe or a server of the user's is no rank
        frames = traceback.extract_tb(exc.__traceback__)
        inner = Path(frames[-1].filename).as_posix() if frames else ""
        return any(part in inner for part in _TALK)
    return isinstance(exc, RuntimeError) and any(word in text for word in CASCADE_WORDS)


def is_timeout(exc: BaseException) -> bool:
    """Whether a cascade error means that the peer is silent, not gone."""
    return is_cascade(exc) and any(word in str(exc).lower() for word in _TIMEOUT_WORDS)
