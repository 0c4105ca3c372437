"""Access control of servers on loopback: a request needs the token, and a Host that names this machine."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ["127.0.0.1", "localhost"]  # any other Host is a name that someone made point here (DNS rebinding)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_BEARER = "bearer "  # compared in lower case, as RFC 9110 has schemes


class Guard:
    """Let in requests with the token, and add HEADERS to answers; others get the answer of ``refuse``.

    The token comes as ``Authorization: Bearer``, or as the ``cookie``, if there is one, which ``/?token=…``
    sets.
    """

    def __init__(
        self, app: ASGIApp, token: str, refuse: Callable[[], Response], cookie: str | None = None
    ) -> None:
        self.app, self.token, self.cookie, self.refuse = app, token, cookie, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no server here has another kind

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        request = Request(scope)
        token = request.query_params.get("token", "")
        if self.cookie is not None and request.url.path == "/" and token and self._is_right(token):
            answer: Response = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            await answer(scope, receive, send_guarded)
        elif self._is_right(self._given(request)):
            await self.app(scope, receive, send_guarded)
        else:
            await self.refuse()(scope, receive, send_guarded)

    def _given(self, request: Request) -> str:
        header = request.headers.get("authorization", "")
        if header[: len(_BEARER)].lower() == _BEARER:
            return header[len(_BEARER) :]
        return request.cookies.get(self.cookie, "") if self.cookie is not None else ""

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


def listening_on(port: int | None, default: int) -> socket.socket:
    """Return a socket that listens on loopback: on ``port``, else on ``default`` or a free one.

    Raises OSError or OverflowError when ``port`` cannot be had.
    """
    for number in (default, 0) if port is None else (port,):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", number))
            server.listen(64)
            return server
        except (OSError, OverflowError) as error:
            server.close()
            reason = error
    raise reason
