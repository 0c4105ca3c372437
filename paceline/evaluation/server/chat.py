"""``/v1/chat/completions``: conversations as training renders them, answers as vLLM's server shapes them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.json_types import Json, JsonObject
from paceline.data.rows.messages import MESSAGE_ROLES, READ, REASONING_PARTS
from paceline.data.rows.values import RowError
from paceline.evaluation.prompts import RenderedPrompt, explained
from paceline.evaluation.server.decoding import MessagePart, Parser, TokenTexts, response_template
from paceline.evaluation.server.desk import CompletionApi, Delta, Desk, GenerationJob
from paceline.evaluation.server.requests import ChatRequest, CommonRequest
from paceline.evaluation.server.shapes import (
    RequestError,
    floored,
    nulls,
    ordered,
    usage,
)

_MESSAGE = frozenset({"role", "content", *READ})
_TEXTS = ("text", "input_text", "output_text", *REASONING_PARTS)


class ChatAnswers(CompletionApi[ChatRequest, "Talk"]):
    """The chat API over one model."""

    kind = ChatRequest
    id_prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._noted: set[str] = set()

    def job(self, request: ChatRequest, original: CommonRequest | None = None) -> GenerationJob:
        """Render a request; ``original``: the request from which it was made. Raises RequestError."""
        job = self.desk.job(original or request, [self.prompt(request).ids])
        if request.is_formed:
            self._check_formed(job)
        if self._template(request) is not None:  # whose marks are special tokens
            job = replace(job, texts=job.texts._replace(skip_special=False))
        return job

    def prompt(self, request: ChatRequest) -> RenderedPrompt:
        """Return the model's prompt. Raises RequestError for parts that the chat template does not write."""
        if not self.desk.prompts.has_template:
            raise RequestError("the tokenizer has no chat template: use /v1/completions", "messages")
        options = {**(request.chat_template_kwargs or {})}
        if request.reasoning_effort is not None:
            options["reasoning_effort"] = request.reasoning_effort
        if refused := [name for name in ("chat_template", "tokenize") if name in options]:
            raise RequestError(f"a request cannot set {', '.join(refused)}", "chat_template_kwargs")
        beside: JsonObject = {
            "tools": request.tools or None,
            "documents": request.documents or None,
            "chat_template_kwargs": options or None,
        }
        messages = [plain_message(message, f"messages[{n}]") for n, message in enumerate(request.messages)]
        try:
            rendered = self.desk.prompts.of_chat(messages, beside, request.add_generation_prompt)
        except RowError as error:
            raise RequestError(explained(error), "messages") from error
        for name in rendered.left_out:
            if name not in self._noted:
                self._noted.add(name)
                print(f"the chat template does not write {name} of requests", file=sys.stderr)
        return rendered

    def _check_formed(self, job: GenerationJob) -> None:
        """Raise RequestError if the prompt opens something other than content (reasoning, a call)."""
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

    def answers(self, request: ChatRequest, job: GenerationJob) -> list[Talk]:
        """Return the answers of a request, with nothing written yet."""
        template, served = self._template(request), self.desk.served
        prompt = "" if template is None else str(served.tokenizer.decode(list(job.prompts[0])))
        texts = TokenTexts(served.tokenizer, bool(request.return_tokens_as_token_ids))
        return [
            Talk(n, request, Parser(template, prompt, request.tools or ()), texts) for n in range(job.count)
        ]

    def beside(self, request: ChatRequest, job: GenerationJob) -> JsonObject:
        ids: Json = list(job.prompts[0]) if request.return_token_ids else None
        beside = nulls("prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics")
        return {"prompt_logprobs": None, "prompt_token_ids": ids, **beside}

    def opening(self, request: ChatRequest, job: GenerationJob, answers: Sequence[Talk]) -> list[JsonObject]:
        beside: JsonObject = {
            "prompt_token_ids": list(job.prompts[0]) if request.return_token_ids else None,
            "prompt_text": None,
        }
        if request.stream_usage[0]:
            beside["usage"] = usage(job.prompts, 0, detailed=False)
        choices: list[JsonObject] = [
            {
                "index": talk.index,
                "delta": {"role": talk.role, "content": ""},
                **nulls("logprobs", "finish_reason"),
            }
            for talk in answers
        ]
        return [{"choices": [choice], **beside} for choice in choices]


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
        """Take the next part; return its new text and its log-probabilities."""
        scores: list[Json] = [] if self._request.top is None else [self._scored(delta)]
        self._scores += scores
        self.tokens.append(delta.token)
        parts = self._parser.feed(delta.text)
        if delta.finish is not None:
            parts += self._parser.end()
        kept: list[MessagePart] = []
        for part in parts:
            if part.kind == "call":
                # One call at most: later ones are left out, as in vLLM.
                if self._ids and self._request.parallel_tool_calls is False:
                    continue
                self._ids.append(f"chatcmpl-tool-{secrets.token_hex(8)}")
            kept.append(part)
        self._parts += kept
        if delta.finish is not None:
            # An answer cut by its length keeps that reason: its last call may be a part.
            called = bool(self._ids) and delta.finish == "stop"
            self.finish, self._reason = ("tool_calls" if called else delta.finish), delta.stop_reason
        return kept, scores

    def choice(self) -> JsonObject:
        """Return the whole answer."""
        reasoning, content = (_text(self._parts, kind) or None for kind in ("reasoning", "content"))
        calls = [part for part in self._parts if part.kind == "call"]
        message: JsonObject = {
            "role": self.role,
            "content": content if calls or reasoning else content or "",
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
        """Take the next part; return the choice of a stream's event, or None without news."""
        first = len(self._ids)
        parts, scores = self.take(delta)
        update: JsonObject = {}
        calls = [part for part in parts if part.kind == "call"]
        for kind, names in (("content", ("content",)), ("reasoning", ("reasoning", "reasoning_content"))):
            text = _text(parts, kind)
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

    def _scored(self, delta: Delta) -> JsonObject:
        likeliest: list[Json] = [
            self._score(score.token, score.logprob)
            for score in ordered(delta.token, delta.logprob, delta.likeliest, self._request.top or 0)
        ]
        return {**self._score(delta.token, delta.logprob), "top_logprobs": likeliest}

    def _score(self, token: int, logprob: float) -> JsonObject:
        text = self._texts.of(token, self.tokens)
        return {"token": text, "logprob": floored(logprob), "bytes": list(text.encode("utf-8", "replace"))}


def _text(parts: Sequence[MessagePart], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def _function(part: MessagePart) -> JsonObject:
    return {"type": "function", "function": {"name": part.name, "arguments": part.text}}


def plain_message(message: Mapping[str, Json], where: str) -> JsonObject:
    """Return a message with its parts as text. Raises RequestError for parts that a text model does not
    read."""
    role = message.get("role")
    if not isinstance(role, str) or role not in MESSAGE_ROLES:
        roles = "system, developer, user, assistant, tool"
        raise RequestError(f"{where}.role must be one of {roles}, got {role!r}", f"{where}.role")
    idle = sorted(
        name for name, value in message.items() if name not in _MESSAGE and value not in (None, [], "")
    )
    if idle:
        raise RequestError(
            f"{where}: fields that nothing here reads: {', '.join(idle)}", f"{where}.{idle[0]}"
        )
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _texts(content, f"{where}.content")}
    # As in vLLM, null is the content of an answer alone; left out it is empty
    null = role == "assistant" or "content" not in message
    if not (isinstance(content, str) or (content is None and null)):
        got = "null" if content is None else repr(content)
        raise RequestError(f"{where}.content must be a text or a list of parts, got {got}", where)
    return {**message, "content": content}


def _texts(parts: Sequence[Json], path: str) -> list[Json]:
    texts: list[Json] = []
    for number, item in enumerate(parts):
        where = f"{path}[{number}]"
        part: Json = {"type": "text", "text": item} if isinstance(item, str) else item
        if not isinstance(part, dict):
            raise RequestError(f"{where} must be an object, got {part!r}", where)
        if part.get("type") == "refusal":
            part = {"type": "text", "text": part.get("refusal")}
        kind = part.get("type")
        if kind not in _TEXTS:
            raise RequestError(f"{where} is of type {kind!r}: the model reads text alone", where)
        if kind not in REASONING_PARTS and not isinstance(part.get("text"), str):
            raise RequestError(f"{where} has no text", where)
        texts.append(part if kind in REASONING_PARTS else {"type": "text", "text": part["text"]})
    return texts
