"""A small OpenAI-style completions server on loopback, as vLLM speaks: it computes with the folder it is told
to load.

    python tests/completions_server.py FOLDER PORT_FILE

Prints nothing. ``PORT_FILE`` gets the port once it listens. Its answers are Paceline's own engine's, so that
they can be compared token by token.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.score_texts import score_texts

LOADING = threading.Lock()  # Transformers patches its classes while it loads: two at once leave them patched


class Served:
    """The model, one call at a time."""

    def __init__(self, folder: str, dtype: torch.dtype) -> None:
        self.lock, self.dtype = threading.Lock(), dtype
        self.loaded: list[str] = []
        self.prefixes: dict[
            tuple[int, ...], Any
        ] = {}  # the model that has read a prompt, as a prefix cache has it
        self.load(folder)

    def load(self, folder: str) -> None:
        """Compute with the weights of this folder from now on."""
        with self.lock, LOADING:
            self.hf = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).eval()
            self.loaded.append(folder)

    def reset(self) -> None:
        """Forget what was read with other weights."""
        self.prefixes.clear()

    def scored(self, prompt: list[int]) -> dict[str, Any]:
        """vLLM's answer to a request for the log-probabilities of its prompt."""
        with self.lock:
            values = score_texts(self.hf, [tuple(prompt)], 1)[0].tolist()
        entries = [{str(t): {"logprob": v, "rank": 1}} for t, v in zip(prompt[1:], values, strict=True)]
        return {"choices": [{"index": 0, "prompt_logprobs": [None, *entries]}]}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer to a completions request."""
        if "prompt_logprobs" in body:
            return self.scored(body["prompt"])
        with self.lock, torch.no_grad():
            hf = self.prefixes.setdefault(tuple(body["prompt"]), self.hf)
            engine = LocalEngine(hf, pad_id=0, stop_ids=body["stop_token_ids"])
            top_k = body["top_k"] if body["top_k"] > 0 else 0
            sampling = RolloutSampling(body["temperature"], body["top_p"], top_k)
            request = Request(tuple(body["prompt"]), body["seed"], body["max_tokens"])
            (found,) = engine.generate([request], sampling)
        tokens, logs = list(found.tokens), found.logprobs.tolist()
        names = [f"token_id:{t}" for t in tokens]
        reason = "stop" if found.ended else "length"
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": reason,
            "token_ids": tokens,
            "logprobs": {"tokens": names, "token_logprobs": logs},
        }
        return {"id": "cmpl-0", "object": "text_completion", "choices": [choice]}


def handler(served: Served) -> type[BaseHTTPRequestHandler]:
    """Requests over this model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(200, {"data": [{"id": "policy"}], "loaded": served.loaded})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.path == "/v1/completions":
                self._reply(200, served.complete(body))
            elif self.path == "/collective_rpc" and body["method"] == "reload_weights":
                served.load(body["kwargs"]["weights_path"])
                self._reply(200, {"results": [None]})
            elif self.path == "/reset_prefix_cache":
                served.reset()
                self._reply(200, None)
            else:
                self._reply(404, {"detail": "Not Found"})

        def _reply(self, status: int, found: Any) -> None:
            data = b"" if found is None else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Handler


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("port_file", type=Path)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), handler(Served(options.folder, getattr(torch, options.dtype)))
    )
    options.port_file.with_suffix(".new").write_text(str(server.server_address[1]))
    options.port_file.with_suffix(".new").rename(options.port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
