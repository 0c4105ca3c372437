"""What a server is told of weights, in order, and the adapters that are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "FOLDER"  # stands for the folder with the model ``mine`` and the adapters
Asked = tuple[str, str, Any]  # method, path, body
GENERATE = "/inference/v1/generate"
SAMPLING = {
    "max_tokens": 5,
    "seed": 3,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "logprobs": 1,
    "stop_token_ids": [2],
    "ignore_eos": True,
    "skip_special_tokens": False,
}
_LOAD = "/v1/load_lora_adapter"
_BUCKET = {"names": [], "dtype_names": [], "shapes": []}


def told() -> Iterator[Asked]:
    """Yield the requests."""
    for path in ("/v1/models", "/weight_info", "/get_world_size"):
        yield "GET", path, None
    yield "POST", "/update_weight_version", {"new_version": "a-1"}
    # the four phases: out of order, and without a sender
    for path in ("/finish_weight_update", "/start_weight_update", "/start_weight_update"):
        yield "POST", path, None
    yield "POST", "/finish_weight_update", {"weight_version": "a-2"}
    yield "GET", "/weight_info", None
    yield "POST", "/update_weights", {"update_info": _BUCKET}
    yield "POST", "/start_weight_update", None
    yield "POST", "/update_weights", {"update_info": _BUCKET}
    yield "POST", "/finish_weight_update", None
    # adapters
    for name in ("adapter", "large", "dora", "in_full"):
        yield "POST", _LOAD, {"lora_name": name, "lora_path": f"{FOLDER}/{name}"}
    yield "POST", _LOAD, {"lora_name": "adapter", "lora_path": f"{FOLDER}/adapter"}
    yield "POST", _LOAD, {"lora_name": "adapter", "lora_path": f"{FOLDER}/adapter", "load_inplace": True}
    for _ in range(2):
        yield "POST", "/v1/unload_lora_adapter", {"lora_name": "adapter"}
    yield "POST", _LOAD, {"lora_name": "adapter", "lora_path": f"{FOLDER}/adapter"}
    yield "GET", "/v1/models", None
    yield "POST", "/reset_prefix_cache", None
    reload = {"method": "reload_weights", "kwargs": {"weights_path": f"{FOLDER}/mine"}}
    yield "POST", "/collective_rpc", reload
    yield "GET", "/weight_info", None
    # answers that say by the token which weights wrote them
    yield "POST", GENERATE, {}
    yield "POST", GENERATE, {"model": "mine", "token_ids": [70, 71, 72], "sampling_params": SAMPLING}
    for path in ("/sleep?level=1", "/wake_up"):  # on a CPU nothing sleeps, and it says that it does
        yield "POST", path, None
    yield "POST", "/no_such_path", {}


def in_folder(body: Any, folder: Path) -> Any:
    """Return the body with the folder's path."""
    return json.loads(json.dumps(body).replace(FOLDER, str(folder)))


def in_outline(path: str, answer: Any) -> Any:
    """Return what must be equal of an answer: all of it, of errors the keys, of models name and parent, of
    tokens their number and the version of their weights.
    """
    if path == "/v1/models":
        return [{key: model.get(key) for key in ("id", "parent")} for model in answer["data"]]
    if isinstance(answer, dict) and "choices" in answer:
        (choice,) = answer["choices"]
        log_probabilities = [sorted({"token_id", "logprob"} & set(e)) for e in choice["logprobs"]["content"]]
        return [
            choice["weight_versions"],
            len(choice["token_ids"]),
            log_probabilities,
            choice["finish_reason"],
        ]
    if isinstance(answer, dict) and "error" in answer:
        return {"error": answer["error"].get("code")}
    return answer


def write_adapters(folder: Path) -> None:
    """Write adapters of the model ``mine``: one that vLLM loads, and three that it does not."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    kinds: dict[str, dict[str, Any]] = {
        "adapter": {},
        "large": {"r": 16},
        "dora": {"use_dora": True},
        "in_full": {"modules_to_save": ["lm_head"]},
    }
    for name, more in kinds.items():
        model = AutoModelForCausalLM.from_pretrained(folder / "mine")
        settings = {"r": 4, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False, **more}
        get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).save_pretrained(folder / name)
