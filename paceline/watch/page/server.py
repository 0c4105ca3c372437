"""The page's server: starlette and uvicorn on loopback, behind a token; it only reads."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from paceline.core.json_types import JsonObject
from paceline.launch.loopback_guard import HOSTS, Guard
from paceline.watch.page.columns import Reduced
from paceline.watch.page.documents import config_of, log_names, log_page, plan_of, samples_of
from paceline.watch.page.view import Runs, RunView

STATIC = Path(__file__).with_name("static")
READ_SECONDS = 0.4  # of events a request; the page asks again until all is read


def make_app(runs: Runs, token: str, cookie: str = "paceline") -> Starlette:
    """Return the application that shows ``runs``."""

    def index(request: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html")

    def rows(request: Request) -> Response:
        return as_json({"runs": runs.rows(), "root": str(runs.root)})

    def answer(make: Callable[[RunView, Request], object]) -> Callable[[Request], Response]:
        def answered(request: Request) -> Response:
            view = runs.view(request.path_params["run"])
            if view is None:
                return PlainTextResponse("no such run\n", 404)
            try:
                return as_json(make(view, request))
            except ValueError as error:  # a parameter that is no number
                return PlainTextResponse(f"{error}\n", 400)

        return answered

    routes = [
        Route("/", index),
        Route("/api/runs", rows),
        *(Route(f"/api/runs/{{run}}{path}", answer(make)) for path, make in ANSWERS.items()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        Middleware(Guard, token=token, refuse=_refused, cookie=cookie),
    ]
    return Starlette(routes=routes, middleware=guards)


def _refused() -> Response:
    return PlainTextResponse("Open the address that `paceline watch` printed: it has a token.\n", 403)


def as_json(value: object) -> Response:
    """Return ``value`` as JSON; NaN and infinities are an error, as browsers cannot read them."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


def _summary(view: RunView, request: Request) -> JsonObject:
    view.advance(READ_SECONDS)
    return view.summary()


def _series(view: RunView, request: Request) -> Mapping[str, Reduced]:
    query = request.query_params
    x = "elapsed" if query.get("x") == "elapsed" else "step"
    begin, end = (float(query[name]) if name in query else None for name in ("from", "to"))
    return view.series(query.getlist("name")[:100], x, int(query.get("buckets", "600")), begin, end)


def _samples(view: RunView, request: Request) -> JsonObject:
    query = request.query_params
    before = int(query["before"]) if "before" in query else None
    return samples_of(view, before, int(query.get("limit", "5")))


def _log(view: RunView, request: Request) -> JsonObject:
    query = request.query_params
    before = int(query["before"]) if "before" in query else None
    limit = max(1, min(int(query.get("limit", "400")), 2000))
    return log_page(view.run, query.get("name", "training.log"), query.get("search", "")[:200], before, limit)


#: Every answer about a run by its path below ``/api/runs/ID``.
ANSWERS: dict[str, Callable[[RunView, Request], object]] = {
    "": _summary,
    "/series": _series,
    "/samples": _samples,
    "/findings": lambda view, request: view.findings(),
    "/checkpoints": lambda view, request: view.checkpoints(),
    "/plan": lambda view, request: plan_of(view.run),
    "/config": lambda view, request: config_of(view.run),
    "/logs": lambda view, request: log_names(view.run),
    "/log": _log,
}


def serve(runs: Runs, token: str, listening: socket.socket) -> None:
    """Answer on a socket that listens, until Ctrl-C or SIGTERM."""
    port = listening.getsockname()[1]
    app: Any = make_app(runs, token, f"paceline_{port}")
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
