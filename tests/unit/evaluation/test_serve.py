"""``paceline serve``: the answers are those of ``paceline generate``; only who has the key is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer

from paceline.core.errors import ConfigError
from paceline.evaluation.prompts import prompts_of
from paceline.generation.answer import Sampling, answer, load_folder

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
    (expected,) = answer(model, tokenizer, prompts_of(tokenizer, [ASKED]), sampling)
    more = {} if length is None else {"max_tokens": length}
    found = asked(client, **more)
    cut = "\ufffd"  # a character that the length cuts in two is not told
    told = found["choices"][0]["message"]["content"]
    assert told == expected.rstrip(cut) and len(expected) > 5
    assert found["model"] == "mine"
    assert found["usage"]["completion_tokens"] <= sampling.max_new_tokens
    body = {"input": ASKED, "max_output_tokens": sampling.max_new_tokens}
    (message,) = asked(client, "/v1/responses", **body)["output"]
    assert message["content"][0]["text"] == told
    *parts, last = streamed(client, CHAT, messages=ASKED, **more)
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == told
    assert last == "[DONE]"


def streamed(client: Any, path: str, **body: Any) -> list[Any]:
    lines = client.post(path, json={"stream": True, **body}, headers=KEY).text.splitlines()
    parts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def test_a_temperature_samples(client: Any) -> None:
    drawn = {
        asked(client, temperature=1.0, seed=seed, max_tokens=12)["choices"][0]["message"]["content"]
        for seed in range(4)
    }
    assert len(drawn) > 1


@pytest.mark.parametrize(
    "bound", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"logit_bias": {"70": 100}}]
)
def test_what_leaves_one_token_is_greedy_at_any_temperature(client: Any, bound: dict[str, Any]) -> None:
    wanted = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True, **bound}
    found = [
        asked(client, temperature=temperature, seed=3, **wanted)["choices"][0]["token_ids"]
        for temperature in (0, 1e-4, 1.0)
    ]
    assert found[0] == found[1] == found[2] and (set(found[0]) == {70} or "logit_bias" not in bound)


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


@pytest.fixture(scope="module")
def openai_client(client: Any) -> Any:
    import openai

    return openai.OpenAI(api_key="the-key", base_url="http://127.0.0.1/v1", http_client=client, max_retries=0)


IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "org/other"}, 404, "'mine'"),
        ({"n": 3}, 400, "n must be 1"),
        ({"top_logprobs": 2}, 400, "logprobs must be set"),
        ({"generation_config": "{}", "guided_json": {"a": 1}}, 400, "generation_config, guided_json"),
        ({"response_format": {"type": "yaml"}}, 400, "json_schema, got 'yaml'"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            400,
            r"messages\[0\].content\[0\].*'image_url'",
        ),
        ({"messages": [{"role": "user", "content": "a" * 999}]}, 400, "192 positions.*tokens"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 400, "developer.*'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, 400, r"messages\[0\].content .* got null"),
        (
            {"messages": [*ASKED, {"role": "tool", "content": None}]},
            400,
            r"messages\[2\].content .* got null",
        ),
        ({"messages": [{"role": "user", "content": "a", "audio": {"id": 1}}]}, 400, "audio"),
        ({"temperature": "hot"}, 400, "temperature: .*number.*'hot'"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "template does not write tools"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, 400, "cannot set chat_template"),
        ({"logit_bias": {"999": 1}}, 400, "no token 999"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop: List should have at most 4"),
        ({"user": "x" * (8 << 20)}, 413, "8 MiB"),
    ],
)
def test_the_openai_client_shows_why(
    openai_client: Any, body: dict[str, Any], status: int, words: str
) -> None:
    import openai

    given = {"model": "mine", "messages": ASKED, **body}
    for more in ({}, {"stream": True}):
        with pytest.raises(openai.APIStatusError, match=words) as found:
            openai_client.post("/chat/completions", body={**given, **more}, cast_to=object)
        assert found.value.status_code == status and found.value.body["message"]


def test_a_form_without_its_package_names_the_pip_line(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.evaluation.server.grammar.find_spec", lambda name: None)
    body = {"messages": ASKED, "response_format": {"type": "json_object"}}
    found = client.post(CHAT, json=body, headers=KEY)
    assert found.status_code == 400 and "pip install 'paceline[serve]'" in found.json()["error"]["message"]


def test_a_content_that_is_left_out_is_empty_and_an_answers_may_be_null(client: Any) -> None:
    """As vLLM 0.32's ChatCompletionRequest takes them."""
    for one in ({"role": "user"}, {"role": "assistant"}, {"role": "assistant", "content": None}):
        assert asked(client, messages=[*ASKED, one], max_tokens=1)["object"] == "chat.completion"


@pytest.mark.parametrize(
    "content",
    [r'{"prompt": "\ud800"}', r'{"prompt": "a", "seed": NaN}', "[" * 90000, r'{"prompt": "\x"}', "\0"],
)
def test_what_is_no_json_is_refused(client: Any, content: str) -> None:
    headers = {**KEY, "content-type": "application/json"}
    found = client.post("/v1/completions", content=content, headers=headers)
    assert found.status_code == 400 and found.json()["error"]["message"].startswith("the body")


def test_more_answers_than_fit_are_written_after_each_other(client: Any, monkeypatch: Any) -> None:
    body = {"prompt": ["a b", "c"], "n": 3, "seed": 5, "temperature": 1, "max_tokens": 4}
    texts = []
    for tokens in (1 << 16, 12):
        monkeypatch.setattr("paceline.evaluation.server.desk.CACHED_TOKENS", tokens)
        found = client.post("/v1/completions", json=body, headers=KEY).json()
        texts.append([(choice["index"], choice["text"]) for choice in found["choices"]])
    assert texts[0] == texts[1] and len(texts[0]) == 6


def test_the_openai_client_reads_every_answer(openai_client: Any) -> None:
    chat = openai_client.chat.completions.create(
        model="mine", messages=ASKED, temperature=1, n=3, seed=1, max_tokens=5, logprobs=True, top_logprobs=2
    )
    assert [len(choice.logprobs.content) for choice in chat.choices] == [5, 5, 5]
    assert len({choice.message.content for choice in chat.choices}) == 3
    again = openai_client.chat.completions.create(
        model="mine", messages=ASKED, temperature=1, n=3, seed=1, max_tokens=5
    )
    assert [c.message.content for c in again.choices] == [c.message.content for c in chat.choices]
    text = openai_client.completions.create(
        model="mine", prompt=["a", "b"], max_tokens=2, logprobs=1, echo=True
    )
    assert [choice.text[0] for choice in text.choices] == ["a", "b"]
    response = openai_client.responses.create(model="mine", input="a", instructions="b", max_output_tokens=3)
    assert response.status == "incomplete" and response.output_text
    with openai_client.responses.stream(model="mine", input="a", max_output_tokens=3) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    parts = openai_client.chat.completions.create(model="mine", messages=ASKED, max_tokens=4, stream=True)
    assert [part.choices[0].finish_reason for part in parts][-1] in ("length", "stop")


def test_a_client_that_goes_away_frees_the_model(folder: Path) -> None:
    """Streamed or not: the model stops within a few tokens, and answers the next one."""
    from paceline.evaluation.serve import front, load

    served = load(folder, "mine", "float32")
    forwards = [0]
    served.model.register_forward_pre_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))  # type: ignore[attr-defined]
    app = front(served, "the-key")

    async def gone(stream: bool) -> None:
        body = json.dumps(
            {"messages": ASKED, "max_tokens": 170, "ignore_eos": True, "stream": stream}
        ).encode()
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        headers.append((b"authorization", b"Bearer the-key"))
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "query_string": b""}
        begun = forwards[0]
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            while forwards[0] < begun + 5:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        sent = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(
            {**scope, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send
        )
        last = forwards[0]
        await asyncio.sleep(0.2)
        assert last - begun < 100 and forwards[0] <= last + 1, (begun, last, forwards[0])

    for stream in (True, False):
        asyncio.run(gone(stream))


THINKING = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
CALL = '<tool_call>{"name": "look", "arguments": {"city": "Rom"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            f"<think>so</think>I look{CALL}",
            [("reasoning", "so"), ("content", "I look"), ("call", '{"city": "Rom"}')],
        ),
        ("just text", [("content", "just text")]),
        (
            '<tool_call>{"name": broken</tool_call> and more',
            [("content", '<tool_call>{"name": broken</tool_call> and more')],
        ),
        (  # cut by max_tokens, behind a call that is whole
            f'I look{CALL}<tool_call>{{"name": "lo',
            [("content", "I look"), ("call", '{"city": "Rom"}'), ("content", '<tool_call>{"name": "lo')],
        ),
        ("<think>cut", [("reasoning", "cut")]),
    ],
)
@pytest.mark.parametrize("piece", [1, 3, 7, 200])
def test_an_answer_is_read_while_it_comes(text: str, parts: list[tuple[str, str]], piece: int) -> None:
    """As vLLM's parsers: a call that is cut or broken is content, as it was written."""
    from paceline.evaluation.server.decoding import Parser

    parser = Parser(THINKING, "<|user|>a<|assistant|>", ())
    found = [
        part for at in range(0, len(text), piece) for part in parser.feed(text[at : at + piece])
    ] + parser.end()
    joined: list[tuple[str, str]] = []
    for part in found:
        kind, before = part.kind, joined.pop() if joined and joined[-1][0] == part.kind else (part.kind, "")
        joined.append((kind, before[1] + part.text))
    assert joined == parts


def test_calls_and_reasoning_stand_beside_the_text(client: Any, folder: Path) -> None:
    """An answer that calls tools, whole and streamed, as the openai client reads it."""
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    from paceline.evaluation.server.chat import Talk
    from paceline.evaluation.server.decoding import Parser, TokenTexts
    from paceline.evaluation.server.desk import Delta
    from paceline.evaluation.server.requests import ChatRequest

    _, tokenizer = load_folder(folder)
    text = f"<think>so</think>I look{CALL}{CALL}"

    def talk(**more: Any) -> Talk:
        body = {"messages": ASKED, "tools": [{"type": "function", "function": {"name": "look"}}], **more}
        parser = Parser(THINKING, "<|assistant|>", ())
        return Talk(0, ChatRequest.parsed(body), parser, TokenTexts(tokenizer, False))

    deltas = [Delta(0, letter, 5, -1.0, ()) for letter in text]
    deltas.append(Delta(0, "", 1, -1.0, (), "stop"))
    for calls, more in ((2, {}), (1, {"parallel_tool_calls": False})):
        whole, stream = talk(**more), talk(**more)
        for delta in deltas:
            whole.take(delta)
        events = [found for delta in deltas if (found := stream.event(delta)) is not None]
        head = {"id": "a", "object": "chat.completion", "created": 1, "model": "m"}
        choice = ChatCompletion.model_validate({**head, "choices": [whole.choice()]}).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("I look", "tool_calls")
        assert choice.message.reasoning_content == "so"  # type: ignore[attr-defined]
        names = [
            (one.function.name, json.loads(one.function.arguments)) for one in choice.message.tool_calls or ()
        ]
        assert names == [("look", {"city": "Rom"})] * calls
        head["object"] = "chat.completion.chunk"
        parts = [ChatCompletionChunk.model_validate({**head, "choices": [one]}).choices[0] for one in events]
        assert "".join(part.delta.content or "" for part in parts) == "I look"
        streamed_calls = [one for part in parts for one in part.delta.tool_calls or ()]
        assert [one.index for one in streamed_calls] == list(range(calls))
        assert len({one.id for one in streamed_calls}) == calls and parts[-1].finish_reason == "tool_calls"


def test_the_one_model_is_listed(client: Any) -> None:
    (one,) = client.get("/v1/models", headers=KEY).json()["data"]
    assert one["id"] == "mine"
    assert asked(client, model="mine", n=1, user="me", max_tokens=3)["model"] == "mine"


def test_a_model_without_a_cache_is_refused_before_it_is_served(tmp_path: Path) -> None:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    from paceline.evaluation.serve import front, load

    made = write_tokenizer(tmp_path / "gpt")
    OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=320, n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        made
    )
    with pytest.raises(ConfigError, match="the server needs a model whose"):
        front(load(made, "mine", "float32"), "the-key")


def test_a_dtype_that_there_is_not(folder: Path) -> None:
    from paceline.evaluation.serve import load

    with pytest.raises(ConfigError, match="float64"):
        load(folder, "mine", "float64")
