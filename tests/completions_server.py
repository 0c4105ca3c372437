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
from torch.distributed import TCPStore
from transformers import AutoModelForCausalLM

from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine, score_texts
from paceline.generation.vllm_plugin import BucketContent, Rendezvous, gloo_group


class Refused(Exception):
    """What vLLM answers with an error."""


LOADING = threading.Lock()  # Transformers patches its classes while it loads: two at once leave them patched


class Served:
    """The model, one call at a time. ``info``: what it says of itself, as vLLM's ``/server_info``."""

    def __init__(self, folder: str, dtype: torch.dtype, info: dict[str, Any] | None = None) -> None:
        self.lock, self.dtype, self.base, self.info = threading.Lock(), dtype, folder, info or {}
        self.version, self.scale_out = "default", False
        self.adapters: dict[str, Any] = {}
        self.updating = False
        self.group: Any = None
        self.loaded: list[str] = []
        self.asleep = False
        self.prefixes: dict[
            tuple[Any, ...], Any
        ] = {}  # the model that has read a prompt, as a prefix cache has it
        self.load(folder)

    def load(self, folder: str) -> None:
        """Compute with the weights of this folder from now on."""
        with self.lock, LOADING:
            self.hf = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).eval()
            self.loaded.append(folder)

    def load_adapter(self, body: dict[str, Any]) -> str:
        """Answer requests for this name by the base with the adapter of this folder."""
        from peft import PeftConfig, PeftModel

        name, folder = body["lora_name"], body["lora_path"]
        if name in self.adapters and not body.get("load_inplace"):
            raise Refused(400, f"The lora adapter '{name}' has already been loaded.")
        told, most = PeftConfig.from_pretrained(folder), self.info["vllm_config"]["lora_config"]
        if most is None or told.r > most["max_lora_rank"]:
            raise Refused(500, f"LoRA rank {told.r} is greater than max_lora_rank")
        if told.use_dora or told.modules_to_save:
            raise Refused(500, "vLLM does not yet support DoRA.")
        with self.lock, LOADING:
            base = AutoModelForCausalLM.from_pretrained(self.base, dtype=self.dtype)
            self.adapters[name] = PeftModel.from_pretrained(base, folder).merge_and_unload().eval()
        self.loaded.append(folder)
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload_adapter(self, body: dict[str, Any]) -> str:
        """Answer no requests for this name."""
        if self.adapters.pop(body["lora_name"], None) is None:
            raise Refused(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        return f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    # --- weight transfer's four phases, over Paceline's own engine

    def join(self, told: dict[str, Any]) -> None:
        """Meet the sender."""
        info = Rendezvous(**told)
        store = TCPStore(info.master_address, info.master_port, is_master=False)
        self.group = gloo_group(store, info.rank_offset, info.world_size, "127.0.0.1", info.seconds)

    def start(self) -> None:
        """Wait for buckets."""
        if self.updating:
            raise Refused(500, "start_weight_update called while a weight update is already active.")
        self.updating = True

    def receive(self, told: dict[str, Any]) -> None:
        """Take a bucket."""
        if not self.updating or self.group is None:
            self.updating = False
            raise Refused(500, "start_weight_update must be called before update_weights.")
        info = BucketContent(**told)
        shapes = [torch.Size(shape) for shape in info.shapes]
        dtypes = [getattr(torch, name) for name in info.dtype_names]
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        self.group.broadcast(data, 0).wait()
        pieces = zip(info.names, data.split(sizes), dtypes, shapes, strict=True)
        with self.lock, torch.no_grad():
            for name, piece, dtype, shape in pieces:
                self.hf.get_parameter(name).copy_(piece.view(dtype).view(shape))

    def finish(self) -> None:
        """End an update."""
        if not self.updating:
            raise Refused(500, "finish_weight_update called without a matching start_weight_update.")
        self.updating = False
        self.loaded.append("memory")

    def reset(self) -> None:
        """Forget what was read with other weights."""
        self.prefixes.clear()

    def scored(self, hf: Any, prompt: list[int]) -> dict[str, Any]:
        """vLLM's answer to a request for the log-probabilities of its prompt."""
        with self.lock:
            values = score_texts(hf, [tuple(prompt)], 1)[0].tolist()
        entries = [{str(t): {"logprob": v, "rank": 1}} for t, v in zip(prompt[1:], values, strict=True)]
        return {"choices": [{"index": 0, "prompt_logprobs": [None, *entries]}]}

    def by_token(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer to a request of ``/inference/v1/generate``."""
        asked = {"model": body["model"], "prompt": body["token_ids"], **body["sampling_params"]}
        (choice,) = self.complete(asked)["choices"]
        tokens, values = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        content = [{"token_id": t, "logprob": v} for t, v in zip(tokens, values, strict=True)]
        spans = [{"version": self.version, "start": 0, "end": len(tokens)}]
        kept = {key: choice[key] for key in ("index", "finish_reason", "token_ids")}
        return {"choices": [{**kept, "logprobs": {"content": content}, "weight_versions": spans}]}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer to a completions request."""
        hf = self.adapters.get(body["model"], self.hf)
        if "prompt_logprobs" in body:
            return self.scored(hf, body["prompt"])
        with self.lock, torch.no_grad():
            hf = self.prefixes.setdefault((body["model"], *body["prompt"]), hf)
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


def handler(served: Served, name: str = "policy") -> type[BaseHTTPRequestHandler]:
    """Requests over this model, which is called ``name``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            models = [{"id": name}, *({"id": n, "parent": name} for n in served.adapters)]
            found = {
                "/v1/models": {"data": models, "loaded": served.loaded},
                "/server_info": served.info,
                "/weight_info": {"weight_version": served.version} if served.info else None,
                "/get_world_size": {"world_size": 1},
                "/health": {},
            }.get(path)
            self.reply(404 if found is None else 200, {"detail": "Not Found"} if found is None else found)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"))

        def answer(self, body: dict[str, Any]) -> None:
            try:
                self.reply(200, self._answer(body))
            except Refused as refused:
                status, words = refused.args
                error = (
                    {"detail": words}
                    if words == "Not Found"
                    else {"error": {"message": words, "code": status}}
                )
                self.reply(status, error)

        def _answer(self, body: dict[str, Any]) -> Any:
            path = self.path
            if body.get("model", name) not in (name, *served.adapters):
                raise Refused(404, f"The model `{body['model']}` does not exist.")
            if path == "/v1/completions":
                return served.complete(body)
            if path == "/inference/v1/generate":
                if not served.scale_out:
                    raise Refused(403, "Scale-out endpoints are disabled.")
                if "token_ids" not in body:
                    raise Refused(400, "Field required")
                return served.by_token(body)
            if path == "/reset_prefix_cache":
                served.reset()
                return {"success": True}
            if path == "/collective_rpc" and body["method"] == "reload_weights":
                served.load(body["kwargs"]["weights_path"])
                return {"results": [None]}
            if served.info and path == "/v1/load_lora_adapter":
                return served.load_adapter(body)
            if served.info and path == "/v1/unload_lora_adapter":
                return served.unload_adapter(body)
            if served.info and path == "/update_weight_version":
                served.version = body["new_version"]
                return {"success": True, "new_version": served.version}
            if served.info and path == "/init_weight_transfer_engine":
                served.join(body["init_info"])
                return {"message": "Weight transfer initialized"}
            if served.info and path == "/start_weight_update":
                served.start()
                return {"message": "Weight update started"}
            if served.info and path == "/update_weights":
                served.receive(body["update_info"])
                return {"message": "Weights updated"}
            if served.info and path == "/finish_weight_update":
                served.finish()
                served.version = body.get("weight_version") or served.version
                return {"message": "Weight update finished"}
            if path.partition("?")[0] in ("/sleep", "/wake_up"):
                served.asleep = path.startswith("/sleep")
                return (
                    {"status": "sleeping", "level": 1} if served.asleep else {"status": "awake", "tags": None}
                )
            raise Refused(404, "Not Found")

        def reply(self, status: int, found: Any) -> None:
            # the answer to an adapter is a text, all others are JSON
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
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
    parser.add_argument("--info", type=json.loads, default={})
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), handler(Served(options.folder, getattr(torch, options.dtype), options.info))
    )
    options.port_file.with_suffix(".new").write_text(str(server.server_address[1]))
    options.port_file.with_suffix(".new").rename(options.port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
