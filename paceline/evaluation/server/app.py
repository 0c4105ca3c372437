"""The application: bodies are read up to a bound, and a client that goes away ends its answer."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import AsyncIterator
from typing import Generic, NoReturn, Protocol, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from paceline.core.json_types import JsonObject
from paceline.evaluation.server.chat import ChatAnswers
from paceline.evaluation.server.desk import Deltas, Desk, GenerationJob, Served
from paceline.evaluation.server.requests import ChatRequest, CommonRequest
from paceline.evaluation.server.responses import ResponseAnswers
from paceline.evaluation.server.shapes import RequestError
from paceline.evaluation.server.text import TextAnswers

BODY_BYTES = 8 << 20
A = TypeVar("A", bound=CommonRequest)


class Api(Protocol[A]):
    """The interface of an API for an endpoint; ``ends_with_done``: its streams end with ``[DONE]``."""

    kind: type[A]
    desk: Desk
    ends_with_done: bool

    def job(self, request: A) -> GenerationJob: ...

    async def whole(self, request: A, job: GenerationJob, deltas: Deltas) -> JsonObject: ...

    def events(self, request: A, job: GenerationJob, deltas: Deltas) -> AsyncIterator[JsonObject]: ...


class Endpoint(Generic[A]):
    """One API's requests, as an ASGI application."""

    def __init__(self, answers: Api[A]) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing more is written once its client has gone."""
        request = Request(scope, receive)
        try:
            parsed = self._answers.kind.parsed(await read_object(request))
        except RequestError as error:
            await _refusal(error)(scope, receive, send)
            return

        async def watch(group: anyio.abc.TaskGroup) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch, group)
            await self._answer(parsed, scope, receive, send)
            group.cancel_scope.cancel()

    async def _answer(self, parsed: A, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _Stream(send, done=self._answers.ends_with_done)
        try:
            async with self._answers.desk.turn():
                job = self._answers.job(parsed)
                async with self._answers.desk.writing(job) as deltas:
                    if parsed.stream:
                        async for event in self._answers.events(parsed, job, deltas):
                            await stream.write(event)
                        await stream.end()
                        return
                    response: Response = JSONResponse(await self._answers.whole(parsed, job, deltas))
        except RequestError as error:
            response = _refusal(error)
        except Exception as error:  # noqa: BLE001  (of the model or its device)
            # A client is told the kind of error, the terminal all of it
            traceback.print_exc(file=sys.stderr)
            failed = RequestError(f"{type(error).__name__}: {error}"[:300], status=500)
            if stream.begun:
                await stream.write(failed.answer())
                await stream.end()
                return
            response = _refusal(failed)
        await response(scope, receive, send)


class _Stream:
    """Server-sent events, ended by ``[DONE]`` or by the last one; nothing is sent before the first one."""

    def __init__(self, send: Send, *, done: bool) -> None:
        self._send, self._done = send, done
        self.begun = False

    async def write(self, event: JsonObject) -> None:
        """Send an event, with its name if this kind of stream has names."""
        name = "" if self._done or "type" not in event else f"event: {event['type']}\n"
        await self._line(f"{name}data: {json.dumps(event, ensure_ascii=False)}")

    async def end(self) -> None:
        """Close the stream."""
        if self._done:
            await self._line("data: [DONE]")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _line(self, data: str) -> None:
        if not self.begun:
            self.begun = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-store"),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        # A token may be half of a surrogate pair
        body = f"{data}\n\n".encode("utf-8", "replace")
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


async def read_object(request: Request) -> JsonObject:
    """Return the JSON object that a request consists of. Raises RequestError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(f"the content-type must be application/json, not {kind or 'left out'}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES:
            raise RequestError(f"a request has at most {BODY_BYTES >> 20} MiB", status=413)
    try:
        content = json.loads(bytes(body), parse_constant=_no_number)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair cannot be written
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}"[:300]) from error
    if not isinstance(content, dict):
        raise RequestError(f"the body must be a JSON object, not {type(content).__name__}")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _refusal(error: RequestError) -> JSONResponse:
    return JSONResponse(error.answer(), error.status)


def application(served: Served, guards: list[Middleware]) -> Starlette:
    """Return the server of one model behind ``guards``. Raises ConfigError for a model without a cache."""
    desk, began = Desk(served), int(time.time())
    chat = ChatAnswers(desk)
    entry: JsonObject = {
        "id": served.name,
        "object": "model",
        "created": began,
        "owned_by": "paceline",
        "root": served.name,
        "parent": None,
        "max_model_len": served.positions,
        "permission": [],
    }

    def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [entry]})

    def model(request: Request) -> Response:
        if request.path_params["name"] != served.name:
            return _refusal(RequestError(f"there is one model here: {served.name!r}", "model", 404))
        return JSONResponse(entry)

    def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refused = RequestError(
            f"{error.detail}: {request.method} {request.url.path}", status=error.status_code
        )
        return JSONResponse(refused.answer(), error.status_code, error.headers)

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/v1/chat/completions", Endpoint[ChatRequest](chat), methods=["POST"]),
        Route("/v1/responses", Endpoint(ResponseAnswers(desk, chat)), methods=["POST"]),
        Route("/v1/completions", Endpoint(TextAnswers(desk)), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=guards, exception_handlers={HTTPException: http_error})
