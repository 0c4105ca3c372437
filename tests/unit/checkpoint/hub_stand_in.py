"""A stand-in for the Hugging Face hub on loopback: what a push asks of it, and what it then holds."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HubStandIn:
    """Repositories by name: their files, whether they are private, and every commit's header and paths."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[dict[str, Any]] = []
        self.large: dict[str, bytes] = {}  # by sha256, as LFS stores them
        self.tokens: set[str] = set()
        self.bodies: list[bytes] = []
        self.refuses_commits = False
        self.address = ""

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return (status, JSON) of one request."""
        path = path.partition("?")[0]
        if verb == "PUT" and path.startswith("/large/"):
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/large/")
            self.large[path.removeprefix("/large/")] = body
            return 200, {}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.files[name], self.private[name] = {}, asked["visibility"] == "private"
            return 200, {"url": f"{self.address}/{name}"}
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {
                "transfer": "basic",
                "objects": [self._where(o) for o in json.loads(body)["objects"]],
            }
        if path == "/api/validate-yaml":  # of the card's header
            return 200, {"errors": [], "warnings": []}
        if path.count("/") < 4:  # huggingface_hub asks other things, too
            return 404, {"error": "Not found"}
        _, api, kind, owner, last, *rest = path.split("/")
        name = f"{owner}/{last}"
        if (api, kind) != ("api", "models") or name not in self.files:
            return 404, {"error": "Repository not found"}
        if path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            mode = {True: "lfs", False: "regular"}
            modes = [
                {
                    "path": f["path"],
                    "uploadMode": mode[f["path"].endswith(".safetensors")],
                    "shouldIgnore": False,
                }
                for f in asked
            ]
            return 200, {"files": modes}
        if path.endswith("/commit/main"):
            return self._commit(name, [json.loads(line) for line in body.splitlines()])
        assert not rest and verb == "GET", (verb, path)
        siblings = [{"rfilename": one} for one in self.files[name]]
        head = f"{len(self.commits):040d}"
        return 200, {"id": name, "sha": head, "private": self.private[name], "siblings": siblings}

    def _where(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return {**wanted, "actions": {"upload": {"href": f"{self.address}/large/{wanted['oid']}"}}}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.refuses_commits:
            return 403, {"error": "this token may not write"}
        files = self.files[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.commits.append(lines[0]["value"])
        oid = f"{len(self.commits):040d}"
        return 200, {"commitUrl": f"{self.address}/{name}/commit/{oid}", "commitOid": oid}


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """Serve one on a free port of 127.0.0.1."""
    hub = HubStandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self._body()
            hub.bodies.append(body)
            hub.tokens.add(self.headers.get("authorization", "").removeprefix("Bearer "))
            status, found = hub.answer(self.command, self.path, body)
            text = json.dumps(found).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("x-error-code", "RepoNotFound")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_PUT = _any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
