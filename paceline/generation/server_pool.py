"""Several generation servers that share a rank's requests; one that fails is left out and reported."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.generation import codes
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.remote import ServerEngine

SERVERS = "training.rollout.servers"


@dataclass
class ServerPool:
    """``GenerationEngine`` over ``engines``. The answers to one prompt come from one server, for its prefix
    cache; a group goes where fewest tokens are in flight.

    ``out``: engine index → why it is not used. The requests of a failed server go to the others. ``first``:
    the server that wins ties, so that ranks do not all begin with the same one.
    """

    engines: Sequence[ServerEngine]
    first: int = 0
    out: dict[int, tuple[Diagnostic, ...]] = field(default_factory=dict)

    def live(self) -> list[int]:
        """Return the indexes of the engines in use."""
        count = len(self.engines)
        places = [(self.first + i) % count for i in range(count)]
        return [place for place in places if place not in self.out]

    def leave_out(self, place: int, error: PacelineError) -> None:
        """Stop using this engine until the next ``exclude``."""
        self.out.setdefault(place, error.diagnostics)

    def exclude(self, out: Mapping[int, Diagnostic]) -> None:
        """Use every engine again except those at these indexes."""
        self.out = {place: (finding,) for place, finding in out.items()}

    def gone(self) -> PacelineError:
        """Return the error that no server is left; for a single server, its own error."""
        if len(self.engines) == 1:
            return PacelineError(*self.out[0])
        reasons = "; ".join(
            f"{engine.server.url}: {self.out[place][0].what} ({self.out[place][0].found})"
            for place, engine in enumerate(self.engines)
        )
        return PacelineError(codes.ROLLOUT_SERVERS_GONE(SERVERS, reasons))

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Raises PacelineError once no server is left."""
        return _Dispatch(self, requests, sampling).run()


class _Dispatch:
    """Distributes the requests of one call over the servers."""

    def __init__(self, pool: ServerPool, requests: Sequence[Request], sampling: RolloutSampling) -> None:
        self.pool, self.requests, self.sampling = pool, requests, sampling
        self.answers: dict[int, Completion] = {}
        self.writers: dict[int, int] = {}  # of the answers, by their requests
        # Answers to one prompt side by side, for ``groupby``.
        by_prompt = sorted(range(len(requests)), key=lambda i: (requests[i].prompt, i))
        groups = [list(group) for _, group in groupby(by_prompt, key=lambda i: requests[i].prompt)]
        # In the order of the requests, not of token ids.
        self.waiting = deque(sorted(groups, key=lambda group: group[0]))
        self.running: dict[Future[Completion], tuple[int, int]] = {}  # request and engine of each call
        self.tokens = Counter[int]()  # in flight, by engine

    def run(self) -> list[Completion]:
        """Send requests until all are answered, by servers with the same weights before and after."""
        self._check_versions(self.pool.live())
        with ExitStack() as stack:
            threads = {
                place: stack.enter_context(ThreadPoolExecutor(self.pool.engines[place].together))
                for place in self.pool.live()
            }
            while self.waiting or self.running:
                if not self.pool.live():
                    break
                self._send(threads)
                # One at a time, so that a free place is filled at once.
                done, _ = wait(self.running, return_when=FIRST_COMPLETED)
                for future in done:
                    self._receive(future)
                # Answers count only if their server still has the weights that it began with.
                if not self.waiting and not self.running:
                    self._check_versions(sorted(set(self.writers.values())))
        if not self.pool.live():
            raise self.pool.gone()
        return [self.answers[i] for i in range(len(self.requests))]

    def _check_versions(self, places: Sequence[int]) -> None:
        """Leave out the servers whose weights have another version, with their answers."""
        for place, error in together(lambda p: self.pool.engines[p].check_version(), places).items():
            self.pool.leave_out(place, error)
            doubtful = [i for i, writer in self.writers.items() if writer == place]
            for i in doubtful:
                del self.writers[i], self.answers[i]
            self.waiting.extend([i] for i in doubtful)

    def _send(self, threads: dict[int, ThreadPoolExecutor]) -> None:
        """Give groups to servers that have room."""
        while self.waiting:
            calls = Counter(place for _, place in self.running.values())
            free = [p for p in self.pool.live() if calls[p] < self.pool.engines[p].together]
            if not free:
                return
            place = min(free, key=lambda p: self.tokens[p])
            for i in self.waiting.popleft():
                self.tokens[place] += self._size(i)
                answer = self.pool.engines[place].answer
                self.running[threads[place].submit(answer, self.requests[i], self.sampling)] = (i, place)

    def _receive(self, future: Future[Completion]) -> None:
        i, place = self.running.pop(future)
        self.tokens[place] -= self._size(i)
        if future.cancelled():
            self.waiting.append([i])
            return
        try:
            self.answers[i], self.writers[i] = future.result(), place
        except PacelineError as error:
            self.pool.leave_out(place, error)
            # Calls that have not begun are cancelled; those that have end by themselves.
            for other, (_, where) in self.running.items():
                if where == place:
                    other.cancel()
            self.waiting.append([i])

    def _size(self, i: int) -> int:
        # An upper bound: how long an answer becomes is unknown.
        return len(self.requests[i].prompt) + self.requests[i].max_tokens


def together(work: Callable[[int], None], places: Collection[int]) -> dict[int, PacelineError]:
    """Do ``work`` for each place at the same time; return the errors by place."""
    with ThreadPoolExecutor(max(1, len(places))) as pool:
        running = {place: pool.submit(work, place) for place in places}
    # The executor's end has waited for all.
    errors = {place: future.exception() for place, future in running.items()}
    for error in errors.values():
        if error is not None and not isinstance(error, PacelineError):
            raise error
    return {place: error for place, error in errors.items() if isinstance(error, PacelineError)}
