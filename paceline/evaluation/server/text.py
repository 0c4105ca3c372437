"""``/v1/completions``: texts and token ids as they are, answers as vLLM's server shapes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.data.rows.values import RowError
from paceline.evaluation.prompts import explained
from paceline.evaluation.server.decoding import TokenTexts
from paceline.evaluation.server.desk import Delta, Deltas, Desk, GenerationJob, PromptScore
from paceline.evaluation.server.requests import CompletionRequest
from paceline.evaluation.server.shapes import (
    FINGERPRINT,
    RequestError,
    chunk,
    floored,
    head,
    nulls,
    ordered,
    usage,
)
from paceline.generation.decoding.stepwise import TokenScore

_Score = tuple[int, float | None, Sequence[TokenScore]]  # token, log-probability, likeliest


class TextAnswers:
    """The completions API over one model."""

    kind = CompletionRequest
    says_done = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def job(self, request: CompletionRequest) -> GenerationJob:
        """Tokenize a request. Raises RequestError."""
        return self.desk.job(request, [self._ids(request, one) for one in request.prompts])

    def _ids(self, request: CompletionRequest, prompt: str | list[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            self.desk.check_ids("prompt", prompt)
            return tuple(prompt)
        if not request.add_special_tokens:
            return tuple(self.desk.served.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        try:
            return self.desk.prompts.of_text(prompt).ids
        except RowError as error:
            raise RequestError(explained(error), "prompt") from error

    def _lines(self, request: CompletionRequest, job: GenerationJob) -> list[_Line]:
        texts = TokenTexts(self.desk.served.tokenizer, bool(request.return_tokens_as_token_ids))
        return [
            _Line(n, request, self._echoed(request, prompt), prompt, texts)
            for n, prompt in enumerate(one for one in job.prompts for _ in range(job.count))
        ]

    def _echoed(self, request: CompletionRequest, prompt: tuple[int, ...]) -> tuple[str, list[PromptScore]]:
        """Return the prompt's text and log-probabilities, if they are to be given back."""
        if not request.echo:
            return "", []
        text = str(self.desk.served.tokenizer.decode(list(prompt)))
        if request.top is None:
            return text, []
        return text, self.desk.scores(prompt, request.top)

    async def whole(self, request: CompletionRequest, job: GenerationJob, deltas: Deltas) -> JsonObject:
        """Return the answers when they are written."""
        lines = self._lines(request, job)
        async for delta in deltas:
            lines[delta.answer].take(delta)
        written = sum(len(line.tokens) for line in lines)
        return {
            **head("cmpl", "text_completion", self.desk.served.name),
            "choices": [line.choice() for line in lines],
            **nulls("service_tier"),
            "system_fingerprint": FINGERPRINT,
            "usage": usage(job.prompts, written),
            **nulls("kv_transfer_params", "ec_transfer_params", "metrics"),
        }

    async def events(
        self, request: CompletionRequest, job: GenerationJob, deltas: Deltas
    ) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream, without its end."""
        lines, base = self._lines(request, job), head("cmpl", "text_completion", self.desk.served.name)
        options = request.stream_options
        each, last = bool(options and options.continuous_usage_stats), bool(options and options.include_usage)
        for line in lines if not any(job.lengths) else ():
            yield chunk(base, line.prompt_alone())
        async for delta in deltas:
            line = lines[delta.answer]
            choice, more = line.event(delta), JsonObject()
            if delta.finish and not last:
                more["system_fingerprint"] = FINGERPRINT
            if each and last:
                own = job.prompts[delta.answer // job.count]
                more["usage"] = usage([own], len(line.tokens), whole=False)
            yield chunk(base, choice, **more)
        if last:
            update = usage(job.prompts, sum(len(line.tokens) for line in lines), whole=False)
            yield {**base, "choices": [], "usage": update, "system_fingerprint": FINGERPRINT}


class _Line:
    """One answer, while it is written; ``echoed``: the prompt's text and scores, which go before it."""

    def __init__(
        self,
        index: int,
        request: CompletionRequest,
        echoed: tuple[str, list[PromptScore]],
        prompt: tuple[int, ...],
        texts: TokenTexts,
    ) -> None:
        self.index, self.tokens = index, list[int]()
        self._request, self._prompt, self._texts = request, prompt, texts
        self._before, self._offset = list[int](), 0
        self._text, self._prompt_scores = echoed
        self._scores: list[_Score] = []
        if request.echo and request.top is not None:
            later = ((one.token, one.logprob, one.likeliest) for one in self._prompt_scores)
            self._scores = [(prompt[0], None, ()), *later]
        self._unsaid = self._text
        self._finish: str | None = None
        self._reason: int | str | None = None

    def take(self, delta: Delta) -> list[_Score]:
        """Take the next part; return its scores."""
        self.tokens.append(delta.token)
        self._text += delta.text
        self._finish, self._reason = delta.finish, delta.stop_reason
        scores: list[_Score] = []
        if self._request.top is not None:
            scores = [(delta.token, delta.logprob, delta.likeliest)]
            self._scores += scores
        return scores

    def choice(self) -> JsonObject:
        """Return the whole answer."""
        return {
            "index": self.index,
            "text": self._text,
            "logprobs": None if self._request.top is None else self._listed(self._scores),
            "finish_reason": self._finish or "length",
            "stop_reason": self._reason,
            "token_ids": list(self.tokens) if self._request.return_token_ids else None,
            "prompt_logprobs": self._ranked(),
            "prompt_token_ids": list(self._prompt) if self._request.return_token_ids else None,
            **nulls("routed_experts"),
        }

    def prompt_alone(self) -> JsonObject:
        """Return the choice of a stream's event that gives the prompt back, and nothing more."""
        logprobs = None if self._request.top is None else self._listed(self._scores)
        return {"index": self.index, "text": self._text, "logprobs": logprobs, "finish_reason": "length"}

    def event(self, delta: Delta) -> JsonObject:
        """Take the next part; return the choice of a stream's event."""
        earlier, first = list(self._scores) if not self.tokens else [], not self.tokens
        scores = [*earlier, *self.take(delta)]
        text, self._unsaid = self._unsaid + delta.text, ""
        with_ids = bool(self._request.return_token_ids)
        return {
            "index": self.index,
            "text": text,
            "logprobs": None if self._request.top is None else self._listed(scores),
            "finish_reason": delta.finish,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": list(self._prompt) if with_ids and first else None,
            "token_ids": [delta.token] if with_ids else None,
        }

    def _listed(self, scores: Sequence[_Score]) -> JsonObject:
        """Return log-probabilities as four lists; the offsets are those of the tokens' own texts."""
        offsets: list[Json] = []
        tokens: list[Json] = []
        own: list[Json] = []
        best: list[Json] = []
        for token, logprob, likeliest in scores:
            text = self._texts.of(token, self._before)
            offsets.append(self._offset)
            tokens.append(text)
            own.append(None if logprob is None else floored(logprob))
            best.append(None if logprob is None else self._best(token, logprob, likeliest))
            self._offset += len(text)
            self._before.append(token)
        return {"text_offset": offsets, "token_logprobs": own, "tokens": tokens, "top_logprobs": best}

    def _ranked(self) -> Json:
        """Return the prompt's log-probabilities with ranks, as vLLM does beside an echo's."""
        if not self._prompt_scores:
            return None
        ranked: list[Json] = [None]
        for at, one in enumerate(self._prompt_scores, 1):
            likeliest = {best.token: (best.logprob, rank) for rank, best in enumerate(one.likeliest, 1)}
            places = {one.token: (one.logprob, one.rank), **likeliest}
            ranked.append(
                {
                    str(token): {
                        "logprob": floored(logprob),
                        "rank": rank,
                        "decoded_token": self._texts.of(token, self._prompt[:at]),
                    }
                    for token, (logprob, rank) in places.items()
                }
            )
        return ranked

    def _best(self, token: int, logprob: float, likeliest: Sequence[TokenScore]) -> JsonObject:
        listed = ordered(token, logprob, likeliest, (self._request.top or 0) + 1)
        return {self._texts.of(one.token, self._before): floored(one.logprob) for one in listed}
