"""``/v1/responses``: its items become messages, answered like chat completions."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.data.rows.messages import MESSAGE_ROLES
from paceline.evaluation.server.chat import ChatAnswers, Talk
from paceline.evaluation.server.decoding import MessagePart
from paceline.evaluation.server.desk import Deltas, Desk, GenerationJob
from paceline.evaluation.server.requests import ChatRequest, CommonRequest, JsonValues
from paceline.evaluation.server.shapes import RequestError, nulls


class ResponsesRequest(CommonRequest):
    """``/v1/responses``."""

    input: str | list[JsonValues]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[JsonValues] | None = None
    tool_choice: str | JsonValues | None = None
    parallel_tool_calls: bool | None = True
    reasoning: JsonValues | None = None
    text: JsonValues | None = None
    truncation: str | None = None
    metadata: JsonValues | None = None

    @property
    def length(self) -> int | None:
        return self.max_output_tokens

    @property
    def length_name(self) -> str:
        return "max_output_tokens"

    @property
    def top(self) -> int | None:
        """Responses here have no log-probabilities."""
        return None

    def check(self) -> None:
        wanted = (self.text or {}).get("format")
        self.response_format = wanted if isinstance(wanted, dict) else None
        if self.response_format and "json_schema" not in self.response_format:  # the API has it flat
            self.response_format = {"type": self.response_format.get("type"), "json_schema": wanted}
        super().check()
        if self.truncation not in (None, "disabled"):
            raise RequestError("nothing is cut here: truncation may only be 'disabled'", "truncation")
        if self.n not in (None, 1):
            raise RequestError("a response is one answer: n must be 1", "n")

    def as_chat(self) -> ChatRequest:
        """Convert it to a chat request. Raises RequestError."""
        fields = self.model_dump(exclude_unset=True, exclude={"input", *_RESPONSES})
        effort = (self.reasoning or {}).get("effort")
        tools = None if self.tools is None else [_tool(tool, n) for n, tool in enumerate(self.tools)]
        chat: JsonObject = {
            **fields,
            "messages": _messages(self),
            "max_tokens": self.max_output_tokens,
            **({} if effort is None else {"reasoning_effort": effort}),
            **({} if not tools else {"tools": tools, "tool_choice": self.tool_choice or "auto"}),
        }
        return ChatRequest.parsed(chat)


_RESPONSES = frozenset({"instructions", "max_output_tokens", "tools", "tool_choice", "reasoning"}) | {
    *("text", "truncation", "metadata")
}


def _tool(tool: Mapping[str, Json], number: int) -> JsonObject:
    if tool.get("type") != "function":
        kind = tool.get("type")
        raise RequestError(f"tools[{number}] is of type {kind!r}: the model calls functions alone", "tools")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {k: tool[k] for k in names if tool.get(k) is not None}}


def _messages(request: ResponsesRequest) -> list[Json]:
    """Return the items as messages: calls, text and reasoning of one turn are one message."""
    messages: list[JsonObject] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    items: Sequence[Mapping[str, Json]] = (
        [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    )
    thought = ""
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thought = _thought(item)
            continue
        message = _message(item, str(kind), number)
        if thought and message["role"] == "assistant":
            message["reasoning_content"], thought = thought, ""
        before = messages[-1] if messages else {}
        calls = message.get("tool_calls")
        if (
            before.get("role") == "assistant"
            and isinstance(calls, list)
            and "reasoning_content" not in message
        ):
            earlier = before.get("tool_calls")
            before["tool_calls"] = [*(earlier if isinstance(earlier, list) else []), *calls]
        else:
            messages.append(message)
    return list(messages)


def _message(item: Mapping[str, Json], kind: str, number: int) -> JsonObject:
    if kind == "function_call":
        function: JsonObject = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call: JsonObject = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    if kind != "message" or item.get("role") not in MESSAGE_ROLES:
        unread = item.get("role") if kind == "message" else kind
        raise RequestError(
            f"input[{number}] is {unread!r}: the model reads messages, calls and results", "input"
        )
    return {"role": item["role"], "content": item.get("content")}


def _thought(item: Mapping[str, Json]) -> str:
    lists = [parts for name in ("content", "summary") if isinstance(parts := item.get(name), list)]
    return "\n".join(str(part.get("text", "")) for parts in lists for part in parts if isinstance(part, dict))


class ResponseAnswers:
    """The responses API over one model."""

    kind = ResponsesRequest
    ends_with_done = False

    def __init__(self, desk: Desk, chat: ChatAnswers) -> None:
        self.desk, self._chat = desk, chat

    def job(self, request: ResponsesRequest) -> GenerationJob:
        """Render a request. Raises RequestError."""
        return self._chat.job(request.as_chat(), request)

    async def whole(self, request: ResponsesRequest, job: GenerationJob, deltas: Deltas) -> JsonObject:
        """Return the answer when it is written."""
        written = _Written(request, job, self.desk.served.name)
        (talk,) = self._chat.answers(request.as_chat(), job)
        async for delta in deltas:
            written.parts(talk.take(delta)[0])
        written.closed()
        return written.response(talk)

    async def events(
        self, request: ResponsesRequest, job: GenerationJob, deltas: Deltas
    ) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream."""
        written = _Written(request, job, self.desk.served.name)
        (talk,) = self._chat.answers(request.as_chat(), job)
        # Events are numbered over the whole stream
        numbers = itertools.count()
        for name in ("response.created", "response.in_progress"):
            yield {"response": written.response(None), "sequence_number": next(numbers), "type": name}
        async for delta in deltas:
            for event in written.parts(talk.take(delta)[0]):
                yield {**event, "sequence_number": next(numbers)}
        for event in written.closed():
            yield {**event, "sequence_number": next(numbers)}
        done = written.response(talk)
        yield {"response": done, "sequence_number": next(numbers), "type": "response.completed"}


class _Written:
    """The items of a response while they are written: reasoning, a message, calls."""

    def __init__(self, request: ResponsesRequest, job: GenerationJob, model: str) -> None:
        self._request, self._job = request, job
        self._items: list[JsonObject] = []
        self._open: JsonObject | None = None
        self._text = ""
        self._head: JsonObject = {"id": f"resp_{secrets.token_hex(8)}", "created_at": int(time.time())}
        self._model = model

    def parts(self, parts: list[MessagePart]) -> list[JsonObject]:
        """Take new parts; return their events."""
        events: list[JsonObject] = []
        for part in parts:
            kind = {"content": "message", "reasoning": "reasoning", "call": "function_call"}[part.kind]
            if self._open is not None and (self._open["type"] != kind or kind == "function_call"):
                events += self.closed()
            if kind == "function_call":
                events += self._called(part)
                continue
            if self._open is None:
                events += self._opened(kind)
            self._text += part.text
            label = "output_text" if kind == "message" else "reasoning_text"
            update: JsonObject = {"delta": part.text, "type": f"response.{label}.delta", **self._place()}
            events.append(update | ({"logprobs": []} if kind == "message" else {}))
        return events

    def _place(self) -> JsonObject:
        assert self._open is not None
        return {"content_index": 0, "item_id": self._open["id"], "output_index": len(self._items)}

    def _opened(self, kind: str) -> list[JsonObject]:
        name = secrets.token_hex(8)
        self._text = ""
        if kind == "reasoning":
            self._open = {"id": f"rs_{name}", "summary": [], "type": "reasoning", "status": "in_progress"}
        else:
            message: JsonObject = {"id": f"msg_{name}", "content": [], "role": "assistant", "type": "message"}
            self._open = {**message, "status": "in_progress", "phase": None}
        indices = self._place()
        added: JsonObject = {"item": dict(self._open), "output_index": indices["output_index"]}
        events: list[JsonObject] = [{**added, "type": "response.output_item.added"}]
        if kind == "message":
            part = {**_output_text(""), "logprobs": []}
            events.append({**indices, "part": part, "type": "response.content_part.added"})
        return events

    def closed(self) -> list[JsonObject]:
        """End the item that is open; return the events."""
        if self._open is None:
            return []
        indices, item, text = self._place(), self._open, self._text
        events: list[JsonObject] = [{"text": text, "type": "response.reasoning_text.done"}]
        item["content"] = [{"type": "reasoning_text", "text": text}]
        if item["type"] == "message":
            item["content"] = [_output_text(text)]
            events = [
                {"text": text, "logprobs": [], "type": "response.output_text.done"},
                {"part": _output_text(text), "type": "response.content_part.done"},
            ]
        item["status"], self._open = "completed", None
        ended: JsonObject = {"item": item, "output_index": len(self._items)}
        self._items.append(item)
        return [*({**indices, **event} for event in events), {**ended, "type": "response.output_item.done"}]

    def _called(self, part: MessagePart) -> list[JsonObject]:
        name = secrets.token_hex(8)
        item: JsonObject = {
            "id": f"fc_{name}",
            "call_id": f"call_{name}",
            "name": part.name,
            "arguments": part.text,
            "type": "function_call",
            "status": "completed",
        }
        index: JsonObject = {"output_index": len(self._items)}
        self._items.append(item)
        arguments: JsonObject = {"item_id": item["id"], "arguments": part.text, "name": part.name}
        return [
            {**index, "item": item, "type": "response.output_item.added"},
            {**index, **arguments, "type": "response.function_call_arguments.done"},
            {**index, "item": item, "type": "response.output_item.done"},
        ]

    def response(self, talk: Talk | None) -> JsonObject:
        """Return the response; ``talk``: the finished answer, if any."""
        request, rules = self._request, self._job.rules
        cut = talk is not None and talk.finish == "length"
        return {
            **self._head,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request.instructions,
            "metadata": request.metadata,
            "model": self._model,
            "object": "response",
            "output": list(self._items),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "temperature": rules.sampling.temperature,
            "tool_choice": request.tool_choice or ("auto" if request.tools else "none"),
            "tools": list(request.tools or ()),
            "top_p": rules.sampling.top_p,
            "background": False,
            "max_output_tokens": self._job.lengths[0],
            **nulls("max_tool_calls", "previous_response_id", "prompt"),
            "reasoning": request.reasoning,
            "service_tier": "auto",
            "status": "in_progress" if talk is None else "incomplete" if cut else "completed",
            "text": request.text,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if talk is None else self._usage(len(talk.tokens)),
            "user": None,
            "presence_penalty": rules.presence,
            "frequency_penalty": rules.frequency,
            **nulls("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"),
        }

    def _usage(self, written: int) -> JsonObject:
        read = len(self._job.prompts[0])
        return {
            "input_tokens": read,
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                **_per_turn("input", "cached"),
            },
            "output_tokens": written,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                **_per_turn("output", "tool_output"),
            },
            "total_tokens": read + written,
        }


def _per_turn(*names: str) -> JsonObject:
    """Return vLLM's lists that are empty in a response of one turn."""
    return {f"{name}_tokens_per_turn": [] for name in names}


def _output_text(text: str) -> JsonObject:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
