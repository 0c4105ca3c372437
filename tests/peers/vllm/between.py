"""A server between a run and a real vLLM: it passes everything on, and can harm what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import weights_asked
from safetensors.torch import load_file, save_file

Tensors = dict[str, Any]
Harm = Callable[["Between", Tensors], Tensors | None]


def state_of(folder: Path) -> Tensors:
    """Return the tensors of a folder."""
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


@dataclass
class Between:
    """What happens to weights on the way to the server at ``url``: ``harm`` to those of each load from the
    ``begins``-th on. It returns the tensors that the server gets in place of the sent ones.

    ``state``: the tensors that the server has, in the order of its model; None of an adapter.
    """

    url: str
    state: Tensors
    harm: Harm | None = None
    rename: Callable[[str], str] | None = None  # of tensors in a transfer
    begins: int = 4
    count: int = 0
    resets: bool = True
    shows_versions: bool = False
    asked: list[str] = field(default_factory=list)

    @property
    def hf(self) -> SimpleNamespace:
        """Stands for the server's model."""
        return SimpleNamespace(state_dict=lambda: self.state)

    @property
    def reset(self) -> Callable[[], None]:
        """Stands for what empties the server's cache."""
        return lambda: None

    @reset.setter
    def reset(self, _: Callable[[], None]) -> None:
        self.resets = False

    def harms(self) -> bool:
        """Count a load; whether it is to be harmed."""
        self.count += 1
        return self.count > self.begins

    def harmed(self, folder: Path) -> Path:
        """Return the folder that the server gets in place of this one."""
        sent, before = state_of(folder), self.state
        order = {name: place for place, name in enumerate(before)}
        self.state = dict(sorted(sent.items(), key=lambda item: order.get(item[0], len(order))))
        if not self.harms() or self.harm is None or (wrong := self.harm(self, before)) is None:
            return folder
        self.state = {**self.state, **wrong}
        target = folder.with_name(f"{folder.name}-harmed")
        target.mkdir(exist_ok=True)
        for file in folder.glob("*.json"):
            (target / file.name).write_bytes(file.read_bytes())
        name = "adapter_model" if (folder / "adapter_config.json").exists() else "model"
        save_file({n: t.contiguous() for n, t in self.state.items()}, target / f"{name}.safetensors")
        return target


def passing_on(between: Between) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer(json.loads(data or b"{}"))

        def answer(self, body: dict[str, Any]) -> None:
            between.asked.append(self.path)
            if self.path == weights_asked.GENERATE and not between.shows_versions:
                return self.reply(403, {})
            if self.path == "/collective_rpc":
                body["kwargs"]["weights_path"] = str(between.harmed(Path(body["kwargs"]["weights_path"])))
            if self.path == "/v1/load_lora_adapter":
                body["lora_path"] = str(between.harmed(Path(body["lora_path"])))
            if self.path == "/start_weight_update":
                between.harms()
            if self.path == "/update_weights" and between.rename and between.count > between.begins:
                told = body["update_info"]
                told["names"] = [between.rename(name) for name in told["names"]]
            if self.path == "/reset_prefix_cache" and not between.resets:
                return self.reply(200, {"success": True})
            return self.forward(body)

        def forward(self, body: dict[str, Any] | None) -> None:
            found = httpx.request(
                self.command, between.url + self.path, json=body, timeout=600, trust_env=False
            )
            is_json = found.headers.get("content-type", "").startswith("application/json")
            self.reply(found.status_code, found.json() if is_json else found.text)

        def reply(self, status: int, found: Any) -> None:
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(found, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    return Handler
