"""One model that answers requests in turn, in a thread; it stops an answer when its client leaves."""

from __future__ import annotations

import asyncio
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.evaluation.prompts import PromptRenderer
from paceline.evaluation.server.decoding import Decoder, TextRules
from paceline.evaluation.server.grammar import Grammars
from paceline.evaluation.server.requests import CommonRequest
from paceline.evaluation.server.shapes import FINGERPRINT, RequestError, head, nulls, usage
from paceline.generation import codes
from paceline.generation.answer import Sampling
from paceline.generation.decoding.layer_states import cache_for
from paceline.generation.decoding.stepwise import GREEDY, Stepwise, TokenRules, TokenScore, TokenStep
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.sampling.noise import stream_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from paceline.protocols.model import HFModel

R = TypeVar("R", bound=CommonRequest)
A = TypeVar("A", bound="ChoiceWriter")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_MOST_POSITIONS = 1 << 15  # of models that say none
CACHED_TOKENS = 1 << 16  # tokens of answers that are written together
_SCORES = 1 << 28  # numbers of the log-probabilities of a whole prompt


@dataclass(frozen=True)
class Served:
    """The served model, its name, and defaults for the settings of requests.

    ``ends``: the tokens that end an answer. ``system``: put before conversations without a system turn.
    """

    name: str
    model: HFModel
    tokenizer: PreTrainedTokenizerFast
    sampling: Sampling
    ends: tuple[int, ...]
    pad: int
    system: str | None = None

    @property
    def positions(self) -> int:
        """The most tokens that prompt and answer have together."""
        text = self.model.config.get_text_config()
        lengths = (getattr(text, name, None) for name in _LENGTHS)
        return next(
            (int(length) for length in lengths if isinstance(length, int) and length > 0), _MOST_POSITIONS
        )

    @property
    def words(self) -> int:
        """The number of token ids that the model has."""
        return int(self.model.config.get_text_config().vocab_size)


@dataclass(frozen=True)
class GenerationJob:
    """Answers to generate: ``count`` per prompt; ``lengths`` holds the maximum length of each."""

    prompts: list[tuple[int, ...]]
    count: int
    lengths: list[int]
    rules: TokenRules
    stops: tuple[int, ...]
    texts: TextRules
    seed: int


class Delta(NamedTuple):
    """The text that one more token adds to an answer, with the answer's number; the last one has a
    ``finish``."""

    answer: int
    text: str
    token: int
    logprob: float
    likeliest: tuple[TokenScore, ...]
    finish: str | None = None
    stop_reason: int | str | None = None


Deltas: TypeAlias = AsyncIterator[Delta]


class PromptScore(NamedTuple):
    """A prompt's token, its log-probability and rank (1: the likeliest), and the likeliest tokens at its
    position."""

    token: int
    logprob: float
    rank: int
    likeliest: tuple[TokenScore, ...]


class Desk:
    """Render requests and write their answers, one request at a time, in the order in which they came.

    Raises ConfigError for a model that keeps states outside of a cache.
    """

    def __init__(self, served: Served) -> None:
        self.served = served
        self.prompts = PromptRenderer(served.tokenizer, served.system)
        try:
            cache_for(served.model, 1)
        except ConfigError as error:
            raise ConfigError(
                codes.GENERATION_STATEFUL(
                    "the server needs a model whose keys, values and states lie in Transformers' cache",
                    served.name,
                    type(served.model).__name__,
                    "talk to it by `paceline chat`",
                )
            ) from error
        self._grammars = Grammars(served.tokenizer, served.words, served.ends)
        self._turn = asyncio.Lock()
        self._model = threading.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the model is free. A template's limits hold for the whole process, so no answer is
        written meanwhile.
        """
        async with self._turn:
            yield

    def job(self, request: CommonRequest, prompts: list[tuple[int, ...]]) -> GenerationJob:
        """Return the job of a request. Raises RequestError for values that do not fit the model."""
        served, defaults = self.served, self.served.sampling
        if request.model not in (None, "", served.name):
            raise RequestError(
                f"The model {request.model!r} does not exist; there is one here: {served.name!r}",
                "model",
                404,
            )
        if request.length is not None and request.length > served.positions:
            raise RequestError(
                f"{request.length_name}={request.length}, but the model has {served.positions} positions",
                request.length_name,
            )
        for number, prompt in enumerate(prompts):
            if len(prompt) >= served.positions:
                more = f" (of prompt {number})" if len(prompts) > 1 else ""
                raise RequestError(
                    f"the model has {served.positions} positions, the prompt{more} has {len(prompt)} tokens"
                    " and leaves no room for an answer",
                    "input_tokens",
                )
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            self.check_ids(name, list(map(int, getattr(request, name) or ())))
        wanted = defaults.max_new_tokens if request.length is None else request.length
        sampling = RolloutSampling(
            defaults.temperature if request.temperature is None else request.temperature,
            defaults.top_p if request.top_p is None else request.top_p,
            defaults.top_k if request.top_k is None else max(0, request.top_k),
        )
        if sampling.temperature < GREEDY:
            if (request.n or 1) > 1:
                raise RequestError(f"n must be 1 when the temperature is 0, got {request.n}", "n")
            sampling = RolloutSampling(0.0)
        stops = tuple(
            dict.fromkeys((*(request.stop_token_ids or ()), *(() if request.ignore_eos else served.ends)))
        )
        rules = TokenRules(
            sampling,
            min_p=request.min_p or 0.0,
            presence=request.presence_penalty or 0.0,
            frequency=request.frequency_penalty or 0.0,
            repetition=1.0 if request.repetition_penalty is None else request.repetition_penalty,
            bias=request.bias,
            allowed=tuple(request.allowed_token_ids or ()),
            least=request.min_tokens,
            # ``ignore_eos`` does not end at them, but ``min_tokens`` still forbids them.
            ends=tuple({*stops, *served.ends}),
            top=request.top,
            grammar=self._grammars.of(request.response_format),
        )
        texts = TextRules(
            request.stops, request.include_stop_str_in_output, request.min_tokens, request.skip_special_tokens
        )
        lengths = [min(wanted, served.positions - len(prompt)) for prompt in prompts]
        # Below 2⁶³, as JSON clients and int64 hold it.
        seed = secrets.randbits(62) if request.seed in (None, -1) else int(request.seed or 0)
        return GenerationJob(prompts, request.n or 1, lengths, rules, stops, texts, seed)

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Raise RequestError for token ids that the model does not have."""
        wrong = [token for token in ids if not 0 <= token < self.served.words]
        if wrong:
            raise RequestError(
                f"{name}: the model has no token {wrong[0]} (it has {self.served.words})", name
            )

    @asynccontextmanager
    async def writing(self, job: GenerationJob) -> AsyncIterator[AsyncIterator[Delta]]:
        """Yield the answers' parts as they are written; leaving the block ends the writing."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Delta | BaseException | None]()
        left = threading.Event()

        def put(item: Delta | BaseException | None) -> None:
            if not left.is_set():
                # asyncio's queue is not safe from another thread.
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            try:
                with self._model:  # one that was given up may be in its last forward
                    for delta in self._written(job):
                        if left.is_set():
                            return
                        put(delta)
                put(None)
            except BaseException as error:  # noqa: BLE001  (raised where the answer is awaited)
                put(error)

        async def parts() -> AsyncIterator[Delta]:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item

        # A daemon: a forward that nobody waits for does not keep the process alive
        threading.Thread(target=work, name="answers", daemon=True).start()
        try:
            yield parts()
        finally:
            left.set()

    def _written(self, job: GenerationJob) -> Iterator[Delta]:
        served = self.served
        requests = [
            Request(prompt, stream_of(job.seed, number, sample), length)
            for number, (prompt, length) in enumerate(zip(job.prompts, job.lengths, strict=True))
            for sample in range(job.count)
        ]
        if not any(job.lengths):
            return
        engine = LocalEngine(served.model, pad_id=served.pad, stop_ids=job.stops)
        together = max(
            1, CACHED_TOKENS // max(len(request.prompt) + request.max_tokens for request in requests)
        )
        for first in range(0, len(requests), together):
            some = requests[first : first + together]
            decoders = [Decoder(served.tokenizer, request.prompt, job.texts) for request in some]
            steps = Stepwise(engine, some, job.rules)
            for each in steps:
                for step in each:
                    # ``step.number`` counts within this part of the requests.
                    delta = self._delta(step, decoders[step.number], job, steps)
                    yield delta._replace(answer=first + step.number)

    def _delta(self, step: TokenStep, decoder: Decoder, job: GenerationJob, steps: Stepwise) -> Delta:
        is_end = step.token in job.stops
        stop = decoder.feed(step.token, is_end)
        finish: str | None = None
        reason: int | str | None = None
        if stop is not None:
            steps.end(step.number)
            finish, reason = "stop", stop
        elif is_end:
            primary = step.token == self.served.tokenizer.eos_token_id
            finish, reason = "stop", None if primary else step.token
        elif step.ended:
            finish = "length"
        text = decoder.delta(finish is not None)
        return Delta(step.number, text, step.token, step.logprob, step.likeliest, finish, reason)

    @torch.no_grad()
    def scores(self, prompt: tuple[int, ...], top: int) -> list[PromptScore]:
        """Return the log-probabilities of a prompt's tokens but the first.

        Raises RequestError for a prompt whose logits would not fit.
        """
        if len(prompt) * self.served.words > _SCORES:
            raise RequestError(
                "echo with logprobs: the prompt is too long for the model's vocabulary", "echo"
            )
        model = self.served.model
        ids = torch.tensor([prompt], device=next(model.parameters()).device)
        logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        chosen = logprobs.gather(1, ids[0, 1:, None])
        # As vLLM counts: equal ones are before it
        ranks = (logprobs >= chosen).sum(1).tolist()
        values, best = (tensor.tolist() for tensor in logprobs.topk(top, -1))
        rows = zip(prompt[1:], chosen.squeeze(1).tolist(), ranks, best, values, strict=True)
        return [
            PromptScore(token, logprob, rank, tuple(map(TokenScore, tokens, numbers)))
            for token, logprob, rank, tokens, numbers in rows
        ]


class ChoiceWriter(Protocol):
    """One answer while it is written, as an API shapes it."""

    tokens: list[int]

    def take(self, delta: Delta) -> Sized: ...

    def choice(self) -> JsonObject: ...

    def event(self, delta: Delta) -> JsonObject | None: ...


class CompletionApi(ABC, Generic[R, A]):
    """An API whose answers are choices, as a whole or in a stream, over one model."""

    ends_with_done = True
    id_prefix: str
    object_name: str
    chunk_name: str

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @abstractmethod
    def answers(self, request: R, job: GenerationJob) -> Sequence[A]:
        """Return the answers of a request, with nothing written yet."""

    @abstractmethod
    def beside(self, request: R, job: GenerationJob) -> JsonObject:
        """Return the fields that follow ``usage`` in a response without streaming."""

    @abstractmethod
    def opening(self, request: R, job: GenerationJob, answers: Sequence[A]) -> list[JsonObject]:
        """Return the first events of a stream, without the fields common to all events."""

    async def whole(self, request: R, job: GenerationJob, deltas: Deltas) -> JsonObject:
        """Return the answers when they are written."""
        answers = self.answers(request, job)
        async for delta in deltas:
            answers[delta.answer].take(delta)
        return {
            **head(self.id_prefix, self.object_name, self.desk.served.name),
            "choices": [answer.choice() for answer in answers],
            **nulls("service_tier"),
            "system_fingerprint": FINGERPRINT,
            "usage": usage(job.prompts, sum(len(answer.tokens) for answer in answers)),
            **self.beside(request, job),
        }

    async def events(self, request: R, job: GenerationJob, deltas: Deltas) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream, without its end."""
        answers = self.answers(request, job)
        base = head(self.id_prefix, self.chunk_name, self.desk.served.name)
        each, last = request.stream_usage
        for event in self.opening(request, job, answers):
            yield {**base, **event}
        async for delta in deltas:
            answer = answers[delta.answer]
            choice = answer.event(delta)
            if choice is None:
                continue
            # As in vLLM: the last event of each answer has it, unless one with the usage follows
            event = {"system_fingerprint": FINGERPRINT} if delta.finish and not last else {}
            if each:
                prompt = job.prompts[delta.answer // job.count]
                event["usage"] = usage([prompt], len(answer.tokens), detailed=False)
            yield {**base, "choices": [choice], **event}
        if last:
            counts = usage(job.prompts, sum(len(answer.tokens) for answer in answers), detailed=False)
            yield {**base, "choices": [], "usage": counts, "system_fingerprint": FINGERPRINT}
