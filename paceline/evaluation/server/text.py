"""``/v1/completions``: plain texts and token ids, with answers in the format of vLLM's server."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.data.rows.values import RowError
from paceline.evaluation.prompts import explained
from paceline.evaluation.server.decoding import TokenTexts
from paceline.evaluation.server.desk import CompletionApi, Delta, GenerationJob, PromptScore
from paceline.evaluation.server.requests import CompletionRequest
from paceline.evaluation.server.shapes import (
    RequestError,
    floored,
    nulls,
    ordered,
)
from paceline.generation.decoding.stepwise import TokenScore

_Score = tuple[int, float | None, Sequence[TokenScore]]  # token, log-probability, likeliest


class TextAnswers(CompletionApi[CompletionRequest, "_Line"]):
    """The completions API over one model."""

    kind = CompletionRequest
    id_prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def job(self, request: CompletionRequest) -> GenerationJob:
        """Tokenize a request. Raises RequestError."""
        return self.desk.job(request, [self._ids(request, prompt) for prompt in request.prompts])

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

    def answers(self, request: CompletionRequest, job: GenerationJob) -> list[_Line]:
        texts = TokenTexts(self.desk.served.tokenizer, bool(request.return_tokens_as_token_ids))
        return [
            _Line(n, request, self._echoed(request, prompt), prompt, texts)
            for n, prompt in enumerate(ids for ids in job.prompts for _ in range(job.count))
        ]

    def _echoed(self, request: CompletionRequest, prompt: tuple[int, ...]) -> tuple[str, list[PromptScore]]:
        """Return the prompt's text and log-probabilities, if they are to be given back."""
        if not request.echo:
            return "", []
        text = str(self.desk.served.tokenizer.decode(list(prompt)))
        if request.top is None:
            return text, []
        return text, self.desk.scores(prompt, request.top)

    def beside(self, request: CompletionRequest, job: GenerationJob) -> JsonObject:
        return nulls("kv_transfer_params", "ec_transfer_params", "metrics")

    def opening(
        self, request: CompletionRequest, job: GenerationJob, answers: Sequence[_Line]
    ) -> list[JsonObject]:
        # Where nothing is to be written the prompts are given back alone
        return [] if any(job.lengths) else [{"choices": [line.prompt_alone()]} for line in answers]


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
            later = ((score.token, score.logprob, score.likeliest) for score in self._prompt_scores)
            self._scores = [(prompt[0], None, ()), *later]
        self._unsaid = self._text
        self._finish: str | None = None
        self._reason: int | str | None = None

    def take(self, delta: Delta) -> list[_Score]:
        """Take the next part; return its scores."""
        self.tokens.append(delta.token)
        self._text += delta.text
        self._finish, self._reason = delta.finish, delta.stop_reason
        wanted = self._request.top is not None
        scores: list[_Score] = [(delta.token, delta.logprob, delta.likeliest)] if wanted else []
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
        """Return the choice of a stream's event that holds only the echoed prompt."""
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
        lists: dict[str, list[Json]]
        lists = {name: [] for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs")}
        for token, logprob, likeliest in scores:
            text = self._texts.of(token, self._before)
            best = None if logprob is None else self._best(token, logprob, likeliest)
            floor = None if logprob is None else floored(logprob)
            for column, value in zip(lists.values(), (self._offset, floor, text, best), strict=True):
                column.append(value)
            self._offset += len(text)
            self._before.append(token)
        return {**lists}

    def _ranked(self) -> Json:
        """Return the prompt's log-probabilities with ranks, as vLLM does for an echo."""
        if not self._prompt_scores:
            return None
        ranked: list[Json] = [None]
        for length, score in enumerate(self._prompt_scores, 1):
            likeliest = {best.token: (best.logprob, rank) for rank, best in enumerate(score.likeliest, 1)}
            ranked.append(
                {
                    str(token): {
                        "logprob": floored(logprob),
                        "rank": rank,
                        "decoded_token": self._texts.of(token, self._prompt[:length]),
                    }
                    for token, (logprob, rank) in {
                        score.token: (score.logprob, score.rank),
                        **likeliest,
                    }.items()
                }
            )
        return ranked

    def _best(self, token: int, logprob: float, likeliest: Sequence[TokenScore]) -> JsonObject:
        listed = ordered(token, logprob, likeliest, (self._request.top or 0) + 1)
        return {self._texts.of(score.token, self._before): floored(score.logprob) for score in listed}
