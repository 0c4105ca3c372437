"""The part of S3 that checkpoints use, in memory: conditional puts, checksums, parts, ranges, listings."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class Buckets:
    """Key → content of all buckets, and uploads in parts."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.refused = 0  # uploads whose content differed from their checksum
        self.unchecked = 0  # uploads without one
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: Buckets

    def log_message(self, *_: object) -> None: ...

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": formatdate(usegmt=True), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def place(self) -> tuple[str, dict[str, list[str]]]:
        split = urlsplit(self.path)
        return unquote(split.path).lstrip("/"), parse_qs(split.query, keep_blank_values=True)

    def body(self) -> bytes | None:
        """The content of a request; None if it is not what its checksum says, or short."""
        expected = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(expected)
        checksum = self.headers.get("x-amz-checksum-sha256")
        found = base64.b64encode(hashlib.sha256(content).digest()).decode()
        if len(content) == expected and checksum in (None, found):
            return content
        self.buckets.refused += 1
        self.close_connection = True
        self.reply(400, b"<Error><Code>BadDigest</Code></Error>", Connection="close")
        return None

    def do_PUT(self) -> None:
        key, query = self.place()
        if (content := self.body()) is None:
            return
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        self.buckets.unchecked += "x-amz-checksum-sha256" not in self.headers
        with self.buckets.lock:
            if "uploadId" in query:
                self.buckets.parts[query["uploadId"][0]][int(query["partNumber"][0])] = content
            elif self.headers.get("If-None-Match") == "*" and key in self.buckets.objects:
                self.reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            else:
                self.buckets.objects[key] = content
        self.reply(200, ETag=etag)

    def do_POST(self) -> None:
        key, query = self.place()
        if self.body() is None:
            return
        with self.buckets.lock:
            if "uploads" in query:
                number = f"u{len(self.buckets.parts)}"
                self.buckets.parts[number] = {}
                name = "InitiateMultipartUploadResult"
                self.reply(200, f"<{name}><UploadId>{number}</UploadId></{name}>".encode())
                return
            parts = self.buckets.parts[query["uploadId"][0]]
            self.buckets.objects[key] = b"".join(parts[one] for one in sorted(parts))
        done = '<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>'
        self.reply(200, done.encode(), ETag='"e"')

    def do_GET(self) -> None:
        key, query = self.place()
        if "list-type" in query:
            self.list(key.rstrip("/"), query.get("prefix", [""])[0])
            return
        content = self.buckets.objects.get(key)
        if content is None:
            self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if given := self.headers.get("Range"):
            first, _, last = given.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(len(content) - 1, int(last or len(content) - 1))
            place = f"bytes {begin}-{end}/{len(content)}"
            self.reply(206, content[begin : end + 1], ETag=etag, Content_Range=place)
            return
        self.reply(200, content, ETag=etag)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.buckets.objects.pop(self.place()[0], None)
        self.reply(204)

    def list(self, bucket: str, prefix: str) -> None:
        start = f"{bucket}/{prefix}"
        found = [key for key in sorted(self.buckets.objects) if key.startswith(start)]
        entries = "".join(
            f"<Contents><Key>{key.removeprefix(bucket + '/')}</Key>"
            f"<Size>{len(self.buckets.objects[key])}</Size>"
            '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e"</ETag></Contents>'
            for key in found
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self.reply(200, text.encode())


@contextmanager
def s3_stand_in() -> Iterator[tuple[str, int, Buckets]]:
    """Serve on a free port of this machine; yields host, port and what is stored."""
    buckets = Buckets()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"buckets": buckets}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield "127.0.0.1", server.server_address[1], buckets
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
