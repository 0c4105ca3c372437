"""Generation by external servers: a client on every rank; rank 0 sends them the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.generation import codes
from paceline.generation.engine import Completion, GenerationEngine, Request, RolloutSampling
from paceline.generation.remote import Server, ServerEngine
from paceline.generation.server_pool import SERVERS, ServerPool, together
from paceline.protocols.model import RootModule
from paceline.protocols.rollout import RolloutInterrupted
from paceline.runtime.process_group.world import World, environment
from paceline.training.preflight.generation_servers import missing_key
from paceline.training.preflight.weight_ways import SentPolicy, Way, best_way
from paceline.training.rollout.weight_entries import Sharing, shape_of
from paceline.training.rollout.weight_folder import FolderSender, WeightFolder
from paceline.training.rollout.weight_probe import Gap, GapBounds, ServerScores, WeightProbe, changed
from paceline.training.rollout.weight_transfer import TransferSender
from paceline.training.rollout.wrong_layer import OUTSIDE, LoudLayers, first_wrong

WEIGHTS = "training.rollout.weights"
BACK_SECONDS = 5.0  # in which a server that was left out must say that it is there again
PATIENCE_SECONDS = 30.0  # for a connection that fails, where other servers can take over

Out = dict[int, Diagnostic]  # the servers that are not asked, by place, and why


@dataclass
class RolloutServers:
    """Opens an engine over the servers ``options``.

    ``open`` is collective and returns when all servers in use have the weights of ``root``. A server that
    fails is left out until it has loaded the weights.

    positions  tokens of prompt and answer
    verifies   compare the servers with the model after each change of weights (``WeightProbe``)
    wanted     the way of the weights, or ``auto``; ``policy`` decides it, ``sharing`` is how ranks hold the
               model
    sleeps     they share the cards of training, and sleep meanwhile
    stop_requested  whether the run is to stop, so that nothing waits for a server that is gone
    notes      on rank 0, changes of the servers' state since it was emptied
    """

    options: Sequence[ServerOptions]
    world: World
    stop_ids: Sequence[int]
    vocab_size: int
    positions: int
    folder: Path
    dtype: torch.dtype
    verifies: bool = True
    wanted: str = "auto"
    policy: SentPolicy = SentPolicy(None, "cpu")
    sharing: Sharing = field(default_factory=Sharing)
    sleeps: bool = False
    stop_requested: Callable[[], bool] = lambda: False
    notes: list[Diagnostic] = field(default_factory=list)
    searched: dict[int, str] = field(default_factory=dict, init=False)  # where a server's weights are wrong
    noted: dict[int, str] = field(default_factory=dict, init=False)  # codes of servers that are left out
    sent: int = field(default=0, init=False)
    num_bytes: int = field(default=0, init=False)  # sent by rank 0

    def __post_init__(self) -> None:
        """Ask the servers for their models.

        Raises ConfigError ``rollout.server_no_key``, PacelineError ``rollout.server_*``.
        """
        variables = environment()
        if missing := [m for o in self.options if (m := missing_key(o.api_key_env, variables))]:
            raise ConfigError(*missing)
        engines = [self._engine(option, variables) for option in self.options]
        # Each rank begins with another server.
        self.pool = ServerPool(engines, self.world.rank)
        self.probe = WeightProbe(self.vocab_size, self.positions, GapBounds.of(self.dtype))
        # A server that is not there yet is no error: it may come later.
        for place, error in together(lambda place: engines[place].find_model(), range(len(engines))).items():
            self.pool.leave_out(place, error)
        try:
            if not self.pool.live():
                raise self.pool.gone()
            self.way = self._way()
        except PacelineError:
            for engine in engines:
                engine.server.close()
            raise
        # A part of versions: a restarted run must not take another's weights for its own.
        self.run = uuid4().hex[:8] if self.world.rank == 0 else ""
        self.sender = self._sender()

    def _sender(self) -> FolderSender | TransferSender:
        engines, seconds = self.pool.engines, [option.sync_timeout for option in self.options]
        if self.way.name == "transfer":
            return TransferSender(engines, seconds, self.world, self.sharing, self.dtype, self.way.backend)
        adapter = self.way.name == "adapter"
        folders = [WeightFolder(self._folder(option), self.dtype, adapter) for option in self.options]
        return FolderSender(engines, seconds, self.world, self.sharing, folders)

    def _way(self) -> Way:
        """Return the best way that the servers which answer take. Collective.

        Raises ConfigError on every rank where there is none.
        """
        best: Way | list[Diagnostic] = []
        if self.world.rank == 0:
            replies = {
                engine.server.url: engine.server.offered("/server_info", config_format="json")
                for engine in (self.pool.engines[place] for place in self.pool.live())
            }
            best = best_way(self.wanted, self.policy, replies)
        way, against = (best.parts, []) if isinstance(best, Way) else ([], best)
        way = self.world.broadcast_json(way)
        if not way:
            findings = self.world.broadcast_json([finding.to_json() for finding in against])
            raise ConfigError(*map(Diagnostic.from_json, findings))
        chosen = Way(*way)
        if self.world.rank == 0:
            self.notes.append(chosen.note(WEIGHTS))
        return chosen

    def open(self, root: RootModule) -> GenerationEngine:
        """Return the engine once the servers have the weights of ``root``. Collective.

        Raises RolloutInterrupted on every rank if no server is left.
        """
        before = self._agreed()
        if self.sleeps:
            self._each("/wake_up", before)
        # The first time: the limits of later comparisons are measured.
        if self.verifies and not self.probe.limits:
            out = self._measure(root, before)
        else:
            out = self._send(root, before)
            if self.verifies:
                out = self._verify(root, out)
        self.pool.exclude(out)
        if self.world.rank == 0:
            self._note(out)
        if not self.pool.live():
            raise RolloutInterrupted(*self.pool.gone().diagnostics)
        return AgreedEngine(self.pool, self.world, self.sharing, self.rest if self.sleeps else None)

    def restart_count(self) -> None:
        """Count the bytes that are sent from 0 again."""
        self.num_bytes = 0

    def take_notes(self) -> list[Diagnostic]:
        """Return the notes, and forget them."""
        taken = list(self.notes)
        self.notes.clear()
        return taken

    def rest(self) -> None:
        """Put the servers to sleep once every rank has its answers: training takes their memory."""
        if self.world.rank == 0:
            self._each("/sleep?level=1", {place: findings[0] for place, findings in self.pool.out.items()})

    def _each(self, path: str, out: Out) -> None:
        """Rank 0 posts to every server that is not out; one that fails is left out at the next request."""
        if self.world.rank == 0:

            def post(place: int) -> None:
                self.pool.engines[place].server.request("POST", path, {}, self.options[place].sync_timeout)

            for place, error in together(post, [p for p in range(len(self.options)) if p not in out]).items():
                self.pool.leave_out(place, error)

    def _engine(self, option: ServerOptions, variables: Mapping[str, str]) -> ServerEngine:
        key = variables[option.api_key_env] if option.api_key_env else None
        patience = min(option.timeout, PATIENCE_SECONDS) if len(self.options) > 1 else None
        server = Server(option.url.rstrip("/"), option.timeout, key, patience, self.stop_requested)
        return ServerEngine(server, option.model or "", self.stop_ids, self.vocab_size, option.concurrency)

    def _folder(self, option: ServerOptions) -> Path:
        return Path(option.weights_dir).expanduser().absolute() if option.weights_dir else self.folder

    def _agreed(self) -> Out:
        """Return the servers that any rank has left out. Collective."""
        mine = {place: findings[0] for place, findings in self.pool.out.items()}
        agreed: Out = {}
        for of_rank in self.world.all_gather_json(to_json(mine)):
            # The first rank's reason counts.
            agreed = from_json(of_rank) | agreed
        return agreed

    def _shared(self, out: Out) -> Out:
        """Return rank 0's ``out`` on every rank. Collective."""
        return from_json(self.world.broadcast_json(to_json(out)))

    def _send(self, root: RootModule, out: Out, places: Collection[int] | None = None) -> Out:
        """Have the servers at ``places`` (default: all) load the weights; return the servers that are out.
        Collective."""
        chosen: list[int] = []
        failed: dict[int, PacelineError] = {}
        if self.world.rank == 0:
            tried = [
                p for p in (range(len(self.options)) if places is None else places) if self._there(p, out)
            ]
            failed = together(self._prepare, tried)
            chosen = [place for place in tried if place not in failed]
            out = {place: finding for place, finding in out.items() if place not in tried}
        self.sent += 1
        # Rank 0 decides which servers are there; the gathers of weights are collectives.
        chosen = self.world.broadcast_json(chosen)
        failed |= self.sender.send(root, chosen, f"{self.run}-{self.sent}")
        self.num_bytes += self.sender.num_bytes
        out |= {place: error.diagnostics[0] for place, error in failed.items()}
        names = [(e.model, e.adapter, e.version, e.reports_version) for e in self.pool.engines]
        for engine, taken in zip(self.pool.engines, self.world.broadcast_json(names), strict=True):
            engine.take(*taken)
        return self._shared(out)

    def _prepare(self, place: int) -> None:
        """Learn a server's name for the model, and have it fill its cache with the weights that it has."""
        engine = self.pool.engines[place]
        engine.find_model()
        if self.verifies:
            self.probe.fill_cache(engine)

    def _changed(self, root: RootModule) -> AbstractContextManager[None]:
        """Inside, the policy has other weights: of those that are sent."""
        if self.way.name == "adapter":
            parts = [p for name, p in root.plain_named_parameters() if ".lora_B." in name]
        else:
            floats = [p for p in root.hf.parameters() if p.is_floating_point()]
            parts = [p for p in floats if len(shape_of(p)) == 1] or floats[-1:]  # a model without norms
        return changed(root, [self.sharing.access.own_part(p) for p in parts])

    def _there(self, place: int, out: Out) -> bool:
        """Whether a server should load weights: it is in use, or answers again."""
        if place not in out:
            return True
        with suppress(PacelineError):
            self.pool.engines[place].server.request("GET", "/health", seconds=BACK_SECONDS)
            return True
        return False

    def _compare(
        self, root: RootModule, out: Out, places: Collection[int] | None = None
    ) -> tuple[Out, dict[int, ServerScores], dict[int, Gap]]:
        """Return the servers that are out, the scores of the others at ``places`` (all), and their gaps from
        the model. Collective.
        """
        answers: dict[int, ServerScores] = {}
        if self.world.rank == 0:

            def query(place: int) -> None:
                answers[place] = self.probe.query(self.pool.engines[place])

            chosen = range(len(self.options)) if places is None else places
            failed = together(query, [place for place in chosen if place not in out])
            out = out | {place: error.diagnostics[0] for place, error in failed.items()}
        out = self._shared(out)
        answers = self._shared_scores(answers)
        with self.sharing.computing():
            own = self.probe.of_model(root, [answer.tokens for answer in answers.values()])
        gaps = [self.probe.gap(answer, mine) for answer, mine in zip(answers.values(), own, strict=True)]
        agreed = [Gap(*gap) for gap in self.world.broadcast_json([list(gap) for gap in gaps])]
        return out, answers, dict(zip(answers, agreed, strict=True))

    def _shared_scores(self, scores: dict[int, ServerScores]) -> dict[int, ServerScores]:
        """Return rank 0's ``scores`` on every rank. Collective."""
        places = self.world.broadcast_json(list(scores))
        tokens = self.world.broadcast_json([list(each.tokens) for each in scores.values()])
        logprobs = self.world.broadcast_json([list(each.logprobs) for each in scores.values()])
        return {
            place: ServerScores(tuple(written), tuple(values))
            for place, written, values in zip(places, tokens, logprobs, strict=True)
        }

    def _measure(self, root: RootModule, out: Out) -> Out:
        """Measure the gaps between servers and model: with the weights, with changed weights, and with the
        first again. Return the servers that are out."""
        gaps: list[dict[int, Gap]] = []
        answers: list[dict[int, ServerScores]] = []
        # With the weights, with others, with the weights again.
        for changes in (False, True, False):
            with self._changed(root) if changes else nullcontext():
                out, answered, gap = self._compare(root, self._send(root, out))
            gaps.append(gap)
            answers.append(answered)
        for place in gaps[2].keys() & gaps[1].keys() & gaps[0].keys() - out.keys():
            moved = self.probe.moved(answers[0][place], answers[2][place])
            if why := self.probe.measured(place, [each[place] for each in gaps], moved):
                worst = max(range(len(gaps)), key=lambda i: max(gaps[i][place]))
                # A collective of its own, hence in the same order on every rank.
                where = self._where(root, place, answers[2][place], gaps[worst][place])
                out[place] = self._wrong(place, why + where)
        return out

    def _verify(self, root: RootModule, out: Out) -> Out:
        """Compare after a change; send the weights once more to a server that differs. Return the servers
        that are out.
        """
        before: dict[int, Gap] = {}
        for again in (True, False):
            out, answers, gaps = self._compare(root, out)
            wrong = {place: gap for place, gap in gaps.items() if gap.over(self.probe.limit(place))}
            for place in before.keys() & gaps.keys() - wrong.keys() if self.world.rank == 0 else ():
                url, apart = self.pool.engines[place].server.url, f"{max(before[place]):.3g} nats a token"
                self.notes.append(codes.ROLLOUT_WEIGHTS_AGAIN(SERVERS, f"{url}: {apart}"))
            if not wrong:
                break
            if again:
                out, before = self._send(root, out, wrong), wrong
            for place, gap in {} if again else wrong.items():
                where = self._where(root, place, answers[place], gap)
                over, most = gap.over(self.probe.limit(place)) or gap
                out[place] = self._wrong(
                    place,
                    f"its log-probabilities differ by {over:.3g} nats, also after they were sent again;"
                    f" {most:.3g} is the most by what was measured at the start{where}",
                )
        return out

    def _where(self, root: RootModule, place: int, answered: ServerScores, gap: Gap) -> str:
        """Return where the weights of a server are wrong, in words. Once a server; collective.

        Weights with other norms and muted layers are sent, 3 + log2(layers) times at most, then the right
        ones again.
        """
        limit = self.probe.limit(place)
        if gap.after > limit.after and gap.text <= limit.text:
            return "; only after a prefix that it has read before: its cache was not reset"
        if self.way.name == "adapter":
            return ""  # muting needs all weights
        if place not in self.searched:
            self.searched[place] = self._search(root, place, answered, limit)
        return self.searched[place]

    def _search(self, root: RootModule, place: int, answered: ServerScores, limit: Gap) -> str:
        layers = LoudLayers(root)
        seen: list[ServerScores] = []

        def wrong(places: Collection[int]) -> bool | None:
            with layers.loud(places):
                _, answers, gaps = self._compare(root, self._send(root, {}, [place]), [place])
            seen.extend(answers.values())
            return bool(gaps[place].over(limit)) if place in gaps else None

        with self._changed(root):
            if not layers.hears(partial(self._silent, root)):
                return ""
            where = first_wrong(wrong, layers.names)
        self._send(root, {}, [place])
        if where == OUTSIDE and self.probe.moved(answered, seen[0]) <= self.probe.bounds.floor:
            return "; it takes over nothing of what is sent"
        return f"; the first difference is {where}" if where else ""

    def _silent(self, root: RootModule) -> Tensor:
        """Return the model's log-probabilities of the text alone. Collective."""
        with self.sharing.computing():
            return self.probe.of_model(root, [()])[0]

    def _wrong(self, place: int, why: str) -> Diagnostic:
        return codes.ROLLOUT_WEIGHTS_WRONG(SERVERS, self.pool.engines[place].server.url, why=why)

    def _note(self, out: Out) -> None:
        """Add notes on the servers whose state has changed."""
        for place, engine in enumerate(self.pool.engines):
            url, was = engine.server.url, self.noted.pop(place, "")
            if place in out:
                self.noted[place] = out[place].code
                if out[place].code != was:
                    self.notes.append(codes.ROLLOUT_SERVER_LEFT_OUT(SERVERS, url, why=in_words(out[place])))
            elif was:
                self.notes.append(codes.ROLLOUT_SERVER_BACK(SERVERS, url))


@dataclass
class AgreedEngine:
    """``GenerationEngine`` whose errors are every rank's: all raise RolloutInterrupted with the first one.

    Of ranks that read the same rows the first one asks.
    """

    pool: ServerPool
    world: World
    sharing: Sharing
    after: Callable[[], None] | None = None

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Collective."""
        done: list[Completion] = []
        failures: list[Diagnostic] = []
        try:
            done = self.pool.generate(requests, sampling) if self.sharing.first else []
        except PacelineError as error:
            failures = list(error.diagnostics)
        everyone = self.world.all_gather_json([finding.to_json() for finding in failures])
        if self.after is not None:
            self.after()
        for findings in filter(None, everyone):
            raise RolloutInterrupted(*map(Diagnostic.from_json, findings))
        # Ranks that read the same rows get the first one's answers: sizes first, then contents.
        counts = torch.tensor([len(c.tokens) for c in done] or [0] * len(requests))
        counts = self.sharing.access.of_first(counts)
        # tokens, log-probabilities, and whether each has ended: all are exact in float64
        rows = [[*map(float, c.tokens), *c.logprobs.tolist(), float(c.ended)] for c in done]
        size = int((2 * counts + 1).sum())
        flat = torch.tensor([v for row in rows for v in row] or [0.0] * size, dtype=torch.float64)
        return completions(self.sharing.access.of_first(flat), counts.tolist())


def completions(flat: Tensor, counts: Sequence[int]) -> list[Completion]:
    """Return the completions of which ``flat`` has tokens, log-probabilities and the end, in turn."""
    rows = []
    for part, n in zip(torch.split(flat, [2 * n + 1 for n in counts]), counts, strict=True):
        tokens, ended = tuple(int(token) for token in part[:n]), bool(part[-1])
        rows.append(Completion(tokens, part[n:-1].float(), ended))
    return rows


def to_json(out: Out) -> JsonObject:
    """Return ``out`` for other ranks."""
    return {str(place): finding.to_json() for place, finding in out.items()}


def from_json(out: JsonObject) -> Out:
    """The inverse of ``to_json``."""
    return {int(place): Diagnostic.from_json(as_object(finding)) for place, finding in out.items()}


def in_words(finding: Diagnostic) -> str:
    """Return a finding in one line."""
    return f"{finding.what} ({finding.found})" if finding.found else finding.what
