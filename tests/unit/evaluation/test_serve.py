"""``paceline serve``: the answers are those of ``paceline generate``; only who has the key is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer

from paceline.core.errors import ConfigError
from paceline.generation.answer import Sampling, answer, load_folder

pytest.importorskip("fastapi")
pytest.importorskip("openai")
KEY = {"authorization": "Bearer the-key"}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a tiny random Llama and a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = write_tokenizer(tmp_path_factory.mktemp("served") / "mine")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=320, max_position_embeddings=192, initializer_range=0.3, **sizes)
    LlamaForCausalLM(config).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    from starlette.testclient import TestClient

    from paceline.evaluation.serve import front, load, name_of

    with TestClient(front(load(folder, name_of(folder), "float32"), "the-key")) as found:
        found.base_url = "http://127.0.0.1"
        yield found


def asked(client: Any, path: str = CHAT, **body: Any) -> Any:
    given = body if "input" in body else {"messages": ASKED, **body}
    found = client.post(path, json=given, headers=KEY)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize("length", [None, 7])
def test_the_greedy_answer_is_ours(client: Any, folder: Path, length: int | None) -> None:
    """Without settings of the request as a run's own settings are: greedy, at most 128 tokens."""
    model, tokenizer = load_folder(folder)
    sampling = Sampling(length or 128)
    (expected,) = answer(model, tokenizer, [ASKED], sampling)
    more = {} if length is None else {"max_tokens": length}
    found = asked(client, **more)
    assert found["choices"][0]["message"]["content"] == expected and len(expected) > 5
    assert found["model"] == "mine"
    assert found["usage"]["completion_tokens"] <= sampling.max_new_tokens
    body = {"input": ASKED, "max_output_tokens": sampling.max_new_tokens}
    (message,) = asked(client, "/v1/responses", **body)["output"]
    assert message["content"][0]["text"] == expected
    lines = client.post(CHAT, json={"messages": ASKED, "stream": True, **more}, headers=KEY).text.splitlines()
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    streamed = [part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"]]
    cut = "\ufffd"  # a character that the length cuts in two is not streamed
    assert "".join(streamed).rstrip(cut) == expected.rstrip(cut)


def test_a_temperature_samples(client: Any) -> None:
    drawn = {
        asked(client, temperature=1.0, seed=seed, max_tokens=12)["choices"][0]["message"]["content"]
        for seed in range(4)
    }
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer the-kez"}, 401),
        ({"cookie": "paceline=the-key"}, 401),
        ({**KEY, "host": "evil.example"}, 400),
    ],
)
def test_others_are_refused(client: Any, headers: dict[str, str], status: int) -> None:
    for verb, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")):
        found = client.request(verb, path, headers=headers, json={"messages": ASKED})
        assert found.status_code == status, (path, found.text)
        assert "the-key" not in found.text and "mine" not in found.text


@pytest.mark.parametrize(
    "path", ["/load_model", "/reset", "/v1/systemone", "/v1/audio/transcriptions", "/docs"]
)
def test_what_would_load_other_models_is_not_there(client: Any, path: str) -> None:
    assert client.post(path, json={"model": "org/other"}, headers=KEY).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "org/other"}, 404, "'mine'"),
        ({"n": 3}, 400, "do nothing here: n"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"generation_config": "{}"}, 400, "generation_config"),
    ],
)
def test_what_has_no_effect_is_refused(client: Any, body: dict[str, Any], status: int, words: str) -> None:
    found = client.post(CHAT, json={"messages": ASKED, **body}, headers=KEY)
    assert found.status_code == status and words in found.text


def test_the_one_model_is_listed(client: Any) -> None:
    (one,) = client.get("/v1/models", headers=KEY).json()["data"]
    assert one["id"] == "mine"
    assert asked(client, model="mine", n=1, user="me", max_tokens=3)["model"] == "mine"


def test_a_dtype_that_there_is_not(folder: Path) -> None:
    from paceline.evaluation.serve import load

    with pytest.raises(ConfigError, match="float64"):
        load(folder, "mine", "float64")
