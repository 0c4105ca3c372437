"""Generation by external servers: a client on every rank; rank 0 sends the weights as safetensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.generation import codes
from paceline.generation.engine import Completion, GenerationEngine, Request, RolloutSampling
from paceline.generation.remote import Server, ServerEngine
from paceline.generation.server_pool import SERVERS, ServerPool
from paceline.protocols.model import RootModule
from paceline.protocols.rollout import RolloutInterrupted
from paceline.runtime.process_group.world import World, environment
from paceline.training.preflight.generation_servers import missing_key
from paceline.training.rollout.weight_folder import WeightFolder, load_weights
from paceline.training.rollout.weight_probe import Gap, GapBounds, ServerScores, WeightProbe, changed_norms
from paceline.training.rollout.wrong_layer import OUTSIDE, LoudLayers, first_wrong

BACK_SECONDS = 5.0  # in which a server that was left out must say that it is there again
PATIENCE_SECONDS = 30.0  # for a connection that fails, where other servers can take over

Out = dict[int, Diagnostic]  # the servers that are not asked, by place, and why


@dataclass
class RolloutServers:
    """Opens an engine over the servers ``options``.

    ``open`` is collective and returns when the servers that are asked use the weights of ``root``. One that
    fails is left out, and taken back once it has loaded the weights. ``positions``: tokens of prompt and
    answer. ``verifies``: compare what servers compute with the model after each change (``WeightProbe``).
    ``notes``: on rank 0, what became of servers since it was emptied.
    """

    options: Sequence[ServerOptions]
    world: World
    stop_ids: Sequence[int]
    vocab_size: int
    positions: int
    folder: Path
    dtype: torch.dtype
    verifies: bool = True
    notes: list[Diagnostic] = field(default_factory=list)
    searched: dict[int, str] = field(default_factory=dict, init=False)  # where a server's weights are wrong
    noted: dict[int, str] = field(
        default_factory=dict, init=False
    )  # the code of each server that is left out

    def __post_init__(self) -> None:
        """Ask the servers for their models.

        Raises ConfigError ``rollout.server_no_key``, PacelineError ``rollout.server_*``.
        """
        variables = environment()
        if missing := [m for o in self.options if (m := missing_key(o.api_key_env, variables))]:
            raise ConfigError(*missing)
        engines = [self._engine(option, variables) for option in self.options]
        self.pool = ServerPool(engines, self.world.rank)
        self.probe = WeightProbe(self.vocab_size, self.positions, GapBounds.of(self.dtype))
        self.weights = [WeightFolder(self._folder(option), self.dtype) for option in self.options]
        for place, error in together(lambda place: engines[place].find_model(), range(len(engines))).items():
            self.pool.leave_out(place, error)
        if not self.pool.live():
            raise self.pool.gone()

    def open(self, root: RootModule) -> GenerationEngine:
        """Return the engine once the servers have the weights of ``root``. Collective.

        Raises RolloutInterrupted on every rank if no server is left.
        """
        before = self._agreed()
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
        return AgreedEngine(self.pool, self.world)

    def _engine(self, option: ServerOptions, variables: Mapping[str, str]) -> ServerEngine:
        key = variables[option.api_key_env] if option.api_key_env else None
        patience = min(option.timeout, PATIENCE_SECONDS) if len(self.options) > 1 else None
        server = Server(option.url.rstrip("/"), option.timeout, key, patience)
        return ServerEngine(server, option.model or "", self.stop_ids, self.vocab_size, option.concurrency)

    def _folder(self, option: ServerOptions) -> Path:
        return Path(option.weights_dir).expanduser().absolute() if option.weights_dir else self.folder

    def _agreed(self) -> Out:
        """Return the servers that any rank has left out. Collective."""
        mine = {place: findings[0] for place, findings in self.pool.out.items()}
        agreed: Out = {}
        for of_rank in self.world.all_gather_json(to_json(mine)):
            agreed = from_json(of_rank) | agreed
        return agreed

    def _shared(self, out: Out) -> Out:
        """Return rank 0's ``out`` on every rank. Collective."""
        return from_json(self.world.broadcast_json(to_json(out)))

    def _send(self, root: RootModule, out: Out, places: Collection[int] | None = None) -> Out:
        """Have the servers at ``places`` (all) load the weights; return those that are out. Collective."""
        if self.world.rank == 0:
            chosen = [
                p for p in (range(len(self.options)) if places is None else places) if self._there(p, out)
            ]
            targets = {folder: folder.save(root.hf) for folder in {self.weights[place] for place in chosen}}

            def load(place: int) -> None:
                self.pool.engines[place].find_model()
                if self.verifies:
                    self.probe.fill_cache(self.pool.engines[place])
                server, seconds = self.pool.engines[place].server, self.options[place].sync_timeout
                load_weights(server, targets[self.weights[place]], seconds)

            failed = together(load, chosen)
            out = {place: finding for place, finding in out.items() if place not in chosen}
            out |= {place: error.diagnostics[0] for place, error in failed.items()}
            for folder in targets:
                folder.remove_former()
        return self._shared(out)

    def _there(self, place: int, out: Out) -> bool:
        """Whether a server is to load weights: it is asked, or answers again."""
        if place not in out:
            return True
        with suppress(PacelineError):
            self.pool.engines[place].server.request("GET", "/health", seconds=BACK_SECONDS)
            return True
        return False

    def _compare(
        self, root: RootModule, out: Out, places: Collection[int] | None = None
    ) -> tuple[Out, dict[int, ServerScores], dict[int, Gap]]:
        """Return the servers that are out, what the others at ``places`` (all) answer, and how far that is
        from the model. Collective.
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
        """Measure the noise between servers and model at θ, θ′, θ; return the servers that are out."""
        gaps: list[dict[int, Gap]] = []
        answers: list[dict[int, ServerScores]] = []
        for changes in (False, True, False):
            with changed_norms(root) if changes else nullcontext():
                out, answered, gap = self._compare(root, self._send(root, out))
            gaps.append(gap)
            answers.append(answered)
        for place in gaps[2].keys() & gaps[1].keys() & gaps[0].keys() - out.keys():
            moved = self.probe.moved(answers[0][place], answers[2][place])
            if why := self.probe.measured(place, [max(each[place]) for each in gaps], moved):
                out[place] = self._wrong(
                    place, why + self._where(root, place, answers[2][place], gaps[2][place])
                )
        return out

    def _verify(self, root: RootModule, out: Out) -> Out:
        """Compare after a change; what a server has wrong is sent once more. Return those that are out."""
        for again in (True, False):
            out, answers, gaps = self._compare(root, out)
            wrong = {place: gap for place, gap in gaps.items() if max(gap) > self.probe.limit(place)}
            if not wrong:
                break
            if again:
                out = self._send(root, out, wrong)
            for place, gap in {} if again else wrong.items():
                where = self._where(root, place, answers[place], gap)
                out[place] = self._wrong(
                    place,
                    f"its log-probabilities differ by {max(gap):.3g} nats, also after they were sent again;"
                    f" {self.probe.limit(place):.3g} is the most by what was measured at the start{where}",
                )
        return out

    def _where(self, root: RootModule, place: int, answered: ServerScores, gap: Gap) -> str:
        """Return where the weights of a server are wrong, in words. Once a server; collective.

        Weights with other norms and muted layers are sent: at most 2 + log2(layers) times, then the right
        ones again.
        """
        limit = self.probe.limit(place)
        if gap.after > limit >= gap.texts:
            return "; only after a prefix that it has read before: its cache was not reset"
        if place not in self.searched:
            self.searched[place] = self._search(root, place, answered, limit)
        return self.searched[place]

    def _search(self, root: RootModule, place: int, answered: ServerScores, limit: float) -> str:
        layers = LoudLayers(root)
        seen: list[ServerScores] = []

        def wrong(count: int) -> bool | None:
            with layers.loud(count):
                _, answers, gaps = self._compare(root, self._send(root, {}, [place]), [place])
            seen.extend(answers.values())
            return max(gaps[place]) > limit if place in gaps else None

        with changed_norms(root):
            if not layers.hears(lambda: self.probe.of_model(root, [()])[0]):
                return ""
            found = first_wrong(wrong, layers.names)
        self._send(root, {}, [place])
        if found == OUTSIDE and self.probe.moved(answered, seen[0]) <= self.probe.bounds.floor:
            return "; it takes over nothing of what is sent"
        return f"; the first difference is {found}" if found else ""

    def _wrong(self, place: int, why: str) -> Diagnostic:
        return codes.ROLLOUT_WEIGHTS_WRONG(SERVERS, self.pool.engines[place].server.url, why=why)

    def _note(self, out: Out) -> None:
        """Note what has changed for a server since the last notes."""
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
    """``GenerationEngine`` whose errors are every rank's: all raise RolloutInterrupted with the first one."""

    pool: ServerPool
    world: World

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Collective."""
        done: list[Completion] = []
        failures: list[Diagnostic] = []
        try:
            done = self.pool.generate(requests, sampling)
        except PacelineError as error:
            failures = list(error.diagnostics)
        everyone = self.world.all_gather_json([finding.to_json() for finding in failures])
        for findings in filter(None, everyone):
            raise RolloutInterrupted(*map(Diagnostic.from_json, findings))
        return done


def to_json(out: Out) -> JsonObject:
    """Return ``out`` for other ranks."""
    return {str(place): finding.to_json() for place, finding in out.items()}


def from_json(out: JsonObject) -> Out:
    """The inverse of ``to_json``."""
    return {int(place): Diagnostic.from_json(as_object(finding)) for place, finding in out.items()}


def together(work: Callable[[int], None], places: Collection[int]) -> dict[int, PacelineError]:
    """Do ``work`` for each place at the same time; return the errors by place."""
    with ThreadPoolExecutor(max(1, len(places))) as pool:
        running = {place: pool.submit(work, place) for place in places}
    errors = {place: future.exception() for place, future in running.items()}
    for error in errors.values():
        if error is not None and not isinstance(error, PacelineError):
            raise error
    return {place: error for place, error in errors.items() if isinstance(error, PacelineError)}


def in_words(finding: Diagnostic) -> str:
    """Return a finding in one line."""
    return f"{finding.what} ({finding.found})" if finding.found else finding.what
