"""Signs of life of nodes that prepare their data, before the ranks meet.

Nodes without a shared cache each tokenize for themselves, and one may need hours where the others find their
data. So rank 0 opens the store before it prepares. Each node that prepares adds to one counter of the store;
those that wait count their limit from the counter's last change.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from types import TracebackType

import torch.distributed as dist

from paceline.core.errors import PacelineError
from paceline.runtime.process_group.rendezvous import PREPARING, connect_store
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import call_with_timeout

SIGN_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
_CONNECT_SECONDS = 2.0  # of one try: the ranks themselves connect as soon as the data are ready


class DataPreparation:
    """Say in the store that this node prepares its data, while the ``with`` block runs.

    Does nothing where one node is alone, since its ranks wait for the data's file lock, and on all but a
    node's first rank. ``store``: the store, where this process hosts it; else None. Entering raises
    PacelineError if the host cannot open its port.
    """

    def __init__(self, env: RankEnv, meet_seconds: float, sign_seconds: float = SIGN_SECONDS) -> None:
        self._env, self._meet_seconds, self._sign_seconds = env, meet_seconds, sign_seconds
        self.store: dist.Store | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> DataPreparation:
        if self._env.num_nodes > 1 and self._env.local_rank == 0:
            if self._env.hosts_store:
                self.store = connect_store(self._env, self._meet_seconds)
            self._thread = threading.Thread(target=self._sign, name="paceline-preparing", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_SECONDS)

    def _sign(self) -> None:
        # What the data's cache has takes less, and needs no connection
        if self._done.wait(self._sign_seconds):
            return
        store = self.store
        while not self._done.wait(self._sign_seconds):
            # Without a store nobody can hear it; the ranks report that when they meet
            with contextlib.suppress(PacelineError, RuntimeError, OSError):
                store = store or connect_store(self._env, _CONNECT_SECONDS, may_host=False)
                call_with_timeout(_ANSWER_SECONDS, partial(store.add, PREPARING, 1), "a sign of life")
