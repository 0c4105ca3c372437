"""``/v1/chat/completions``: conversations as training renders them, answers as vLLM's server shapes them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from paceline.core.json_types import Json, JsonObject
from paceline.data.rows.messages import MESSAGE_ROLES, READ, REASONING_PARTS
from paceline.data.rows.values import RowError
from paceline.evaluation.prompts import RenderedPrompt, explained
from paceline.evaluation.server.decoding import MessagePart, Parser, TokenTexts, response_template
from paceline.evaluation.server.desk import Delta, Deltas, Desk, GenerationJob
from paceline.evaluation.server.requests import ChatRequest, CommonRequest
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

_MESSAGE = frozenset({"role", "content", *READ})
_TEXTS = ("text", "input_text", "output_text", *REASONING_PARTS)


class ChatAnswers:
    """The chat API over one model."""

    kind = ChatRequest
    says_done = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._noted: set[str] = set()

    def job(self, request: ChatRequest, given: CommonRequest | None = None) -> GenerationJob:
        """Render a request; ``given``: the one that it was made from. Raises RequestError."""
        prompt = self.prompt(request)
        job = self.desk.job(given or request, [prompt.ids])
        if request.is_formed:
            self._check_formed(job)
        if self._template(request) is not None:  # whose marks are special tokens
            job = replace(job, texts=job.texts._replace(skip_special=False))
        return job

    def prompt(self, request: ChatRequest) -> RenderedPrompt:
        """Return what the model reads. Raises RequestError for what the chat template does not write."""
        if not self.desk.prompts.has_template:
            raise RequestError("the tokenizer has no chat template: use /v1/completions", "messages")
        options = {**(request.chat_template_kwargs or {})}
        if request.reasoning_effort is not None:
            options["reasoning_effort"] = request.reasoning_effort
        if own := [name for name in ("chat_template", "tokenize") if name in options]:
            raise RequestError(f"a request cannot set {', '.join(own)}", "chat_template_kwargs")
        beside: JsonObject = {
            "tools": request.tools or None,
            "documents": request.documents or None,
            "chat_template_kwargs": options or None,
        }
        messages = [plain_message(one, f"messages[{n}]") for n, one in enumerate(request.messages)]
        try:
            found = self.desk.prompts.of_chat(messages, beside, request.add_generation_prompt)
        except RowError as error:
            raise RequestError(explained(error), "messages") from error
        for name in found.left_out:
            if name not in self._noted:
                self._noted.add(name)
                print(f"the chat template does not write {name} of requests", file=sys.stderr)
        return found

    def _check_formed(self, job: GenerationJob) -> None:
        """Raise RequestError where the prompt opens something else than content."""
        template, tokenizer = response_template(self.desk.served, calls=False), self.desk.served.tokenizer
        parser = Parser(template, "" if template is None else str(tokenizer.decode(list(job.prompts[0]))), ())
        if [*parser.feed("{}"), *parser.end()] != [MessagePart("content", "{}")]:
            raise RequestError(
                "response_format holds from the first token on, but the prompt opens reasoning: turn it off"
                " by chat_template_kwargs, if the chat template can",
                "response_format",
            )

    def _template(self, request: ChatRequest) -> JsonObject | None:
        if request.is_formed:  # all of the answer is content
            return None
        return response_template(
            self.desk.served, calls=bool(request.tools) and request.tool_choice != "none"
        )

    def talks(self, request: ChatRequest, job: GenerationJob) -> list[Talk]:
        """Return the answers of a request, with nothing written yet."""
        template, served = self._template(request), self.desk.served
        prompt = "" if template is None else str(served.tokenizer.decode(list(job.prompts[0])))
        texts = TokenTexts(served.tokenizer, bool(request.return_tokens_as_token_ids))
        return [
            Talk(n, request, Parser(template, prompt, request.tools or ()), texts) for n in range(job.count)
        ]

    async def whole(self, request: ChatRequest, job: GenerationJob, deltas: Deltas) -> JsonObject:
        """Return the answer when it is written."""
        talks = self.talks(request, job)
        async for delta in deltas:
            talks[delta.answer].take(delta)
        written = sum(len(talk.tokens) for talk in talks)
        return {
            **head("chatcmpl", "chat.completion", self.desk.served.name),
            "choices": [talk.choice() for talk in talks],
            **nulls("service_tier"),
            "system_fingerprint": FINGERPRINT,
            "usage": usage(job.prompts, written),
            **nulls("prompt_logprobs"),
            "prompt_token_ids": list(job.prompts[0]) if request.return_token_ids else None,
            **nulls("prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics"),
        }

    async def events(
        self, request: ChatRequest, job: GenerationJob, deltas: Deltas
    ) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream, without its end."""
        talks, base = (
            self.talks(request, job),
            head("chatcmpl", "chat.completion.chunk", self.desk.served.name),
        )
        options = request.stream_options
        each, last = bool(options and options.continuous_usage_stats), bool(options and options.include_usage)

        def counted(tokens: int) -> JsonObject:
            return {"usage": usage(job.prompts, tokens, whole=False)} if each and last else {}

        for talk in talks:
            opening: JsonObject = {
                "index": talk.index,
                "delta": {"role": talk.role, "content": ""},
                **nulls("logprobs", "finish_reason"),
            }
            ids: Json = list(job.prompts[0]) if request.return_token_ids else None
            yield chunk(base, opening, prompt_token_ids=ids, prompt_text=None, **counted(0))
        async for delta in deltas:
            talk = talks[delta.answer]
            choice = talk.event(delta)
            if choice is not None:
                print_of = {"system_fingerprint": FINGERPRINT} if delta.finish and not last else {}
                yield chunk(base, choice, **print_of, **counted(len(talk.tokens)))
        if last:
            update = usage(job.prompts, sum(len(talk.tokens) for talk in talks), whole=False)
            yield {**base, "choices": [], "usage": update, "system_fingerprint": FINGERPRINT}


def _may_call(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


class Talk:
    """One answer of the assistant, while it is written."""

    def __init__(self, index: int, request: ChatRequest, parser: Parser, texts: TokenTexts) -> None:
        self.index, self.tokens = index, list[int]()
        self.role = "assistant" if request.add_generation_prompt else str(request.messages[-1]["role"])
        self._request, self._parser, self._texts = request, parser, texts
        self._parts: list[MessagePart] = []
        self._scores: list[Json] = []
        self._ids: list[str] = []
        self.finish: str | None = None
        self._reason: int | str | None = None

    def take(self, delta: Delta) -> tuple[list[MessagePart], list[Json]]:
        """Take the next part; return what is new of it, and its log-probabilities."""
        scores: list[Json] = []
        if self._request.top is not None:
            scores = [self._scored(delta)]
            self._scores += scores
        self.tokens.append(delta.token)
        parts = self._parser.feed(delta.text)
        if delta.finish is not None:
            parts += self._parser.end()
        kept: list[MessagePart] = []
        for part in parts:
            if part.kind == "call":
                if self._ids and self._request.parallel_tool_calls is False:
                    continue
                self._ids.append(f"chatcmpl-tool-{secrets.token_hex(8)}")
            kept.append(part)
        self._parts += kept
        if delta.finish is not None:
            called = bool(self._ids) and delta.finish == "stop"
            self.finish, self._reason = ("tool_calls" if called else delta.finish), delta.stop_reason
        return kept, scores

    def choice(self) -> JsonObject:
        """Return the whole answer."""
        reasoning = self._text("reasoning") or None
        calls = [part for part in self._parts if part.kind == "call"]
        content = self._text("content")
        message: JsonObject = {
            "role": self.role,
            "content": content if content or not (calls or reasoning) else None,
            **nulls("refusal", "annotations", "audio", "function_call"),
            "reasoning": reasoning,
        }
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": name, **_function(part)} for name, part in zip(self._ids, calls, strict=True)
            ]
        return {
            "index": self.index,
            "message": message,
            "logprobs": None if self._request.top is None else {"content": self._scores},
            "finish_reason": self.finish,
            "stop_reason": self._reason,
            "token_ids": list(self.tokens) if self._request.return_token_ids else None,
            **nulls("routed_experts"),
        }

    def event(self, delta: Delta) -> JsonObject | None:
        """Take the next part; return the choice of a stream's event, None where there is nothing to tell."""
        first = len(self._ids)
        parts, scores = self.take(delta)
        update: JsonObject = {}
        calls = [part for part in parts if part.kind == "call"]
        for kind, names in (("content", ("content",)), ("reasoning", ("reasoning", "reasoning_content"))):
            text = "".join(part.text for part in parts if part.kind == kind)
            update |= dict.fromkeys(names, text) if text else {}
        if calls:
            update["tool_calls"] = [
                {"index": n, "id": self._ids[n], **_function(part)} for n, part in enumerate(calls, first)
            ]
        if not update and delta.finish is None and not scores and not self._request.return_token_ids:
            return None
        choice: JsonObject = {
            "index": self.index,
            "delta": update or {"content": ""},
            "logprobs": {"content": scores} if self._request.top is not None else None,
            "finish_reason": self.finish,
        }
        if delta.finish is not None:
            choice["stop_reason"] = self._reason
        return {**choice, "token_ids": [delta.token] if self._request.return_token_ids else None}

    def _text(self, kind: str) -> str:
        return "".join(part.text for part in self._parts if part.kind == kind)

    def _scored(self, delta: Delta) -> JsonObject:
        top = self._request.top or 0
        likeliest: list[Json] = [
            self._score(one.token, one.logprob)
            for one in ordered(delta.token, delta.logprob, delta.likeliest, top)
        ]
        return {**self._score(delta.token, delta.logprob), "top_logprobs": likeliest}

    def _score(self, token: int, logprob: float) -> JsonObject:
        text = self._texts.of(token, self.tokens)
        return {"token": text, "logprob": floored(logprob), "bytes": list(text.encode("utf-8", "replace"))}


def _function(part: MessagePart) -> JsonObject:
    return {"type": "function", "function": {"name": part.name, "arguments": part.text}}


def plain_message(message: Mapping[str, Json], place: str) -> JsonObject:
    """Return a message whose parts are texts. Raises RequestError for what a text model does not read."""
    role = message.get("role")
    if not isinstance(role, str) or role not in MESSAGE_ROLES:
        known = "system, developer, user, assistant, tool"
        raise RequestError(f"{place}.role must be one of {known}, got {role!r}", f"{place}.role")
    idle = sorted(
        name for name, value in message.items() if name not in _MESSAGE and value not in (None, [], "")
    )
    if idle:
        raise RequestError(
            f"{place}: fields that nothing here reads: {', '.join(idle)}", f"{place}.{idle[0]}"
        )
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _texts(content, f"{place}.content")}
    # As in vLLM, null is the content of an answer alone; left out it is empty
    null = role == "assistant" or "content" not in message
    if not (isinstance(content, str) or (content is None and null)):
        got = "null" if content is None else repr(content)
        raise RequestError(f"{place}.content must be a text or a list of parts, got {got}", place)
    return {**message, "content": content}


def _texts(parts: Sequence[Json], place: str) -> list[Json]:
    made: list[Json] = []
    for number, part in enumerate(parts):
        where = f"{place}[{number}]"
        if not isinstance(part, dict):
            if isinstance(part, str):
                made.append({"type": "text", "text": part})
                continue
            raise RequestError(f"{where} must be an object, got {part!r}", where)
        kind = part.get("type")
        if kind == "refusal":
            part, kind = {"type": "text", "text": part.get("refusal")}, "text"
        if kind not in _TEXTS:
            raise RequestError(f"{where} is of type {kind!r}: the model reads text alone", where)
        if kind not in REASONING_PARTS:
            if not isinstance(part.get("text"), str):
                raise RequestError(f"{where} has no text", where)
            part = {"type": "text", "text": part["text"]}
        made.append(part)
    return made
