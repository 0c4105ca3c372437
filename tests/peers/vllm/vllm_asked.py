"""The model and the requests that are put to vLLM's server and to ours: both made from seeds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support import write_tokenizer

POSITIONS = 192
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
Body = dict[str, Any]


SIZE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {**SIZE, "model_type": "mixtral", "num_local_experts": 4, "num_key_value_heads": 2}
LARGER = {"hidden_size": 640, "intermediate_size": 2752, "num_hidden_layers": 8, "num_attention_heads": 10}


def write_model(folder: Path, size: Mapping[str, Any] = SIZE, initializer_range: float = 0.3) -> Path:
    """Write a Llama, or ``size["model_type"]``, whose greedy answers are of letters mostly, and end now and
    then.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.for_model(
        **{"model_type": "llama", **size},
        vocab_size=320,
        max_position_embeddings=POSITIONS,
        initializer_range=initializer_range,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for token in range(320):
            text = tokenizer.decode([token])
            if not (text.isascii() and text.isprintable()) or token < 5:
                model.lm_head.weight[token] *= 0.4
    model.save_pretrained(folder)
    return folder


CONVERSATIONS: tuple[list[Body], ...] = (
    [{"role": "user", "content": "What is 2 + 3?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a fruit."}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ],
    [{"role": "user", "content": "Übung macht den Meister"}, {"role": "assistant", "content": None}],
    [{"role": "user", "content": "hello", "name": "Ann"}],
    [
        {"role": "user", "content": "a", "refusal": None},
        {"role": "assistant", "content": "b", "tool_calls": None, "function_call": None, "audio": None},
        {"role": "user", "content": [{"type": "text", "text": "c "}, {"type": "text", "text": "d"}]},
    ],
)
PROMPTS: tuple[Any, ...] = ("Hello there", ["one", "two three"], [70, 71, 72, 90], [[70, 71], [80, 81, 82]])
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}

#: Fields with values that each API takes, and with others that it may refuse: drawn by ``generated``.
GOOD: Mapping[str, Sequence[Any]] = {
    "max_tokens": (1, 2, 7, 30),
    "stop": (None, [], ["zzzz"]),
    "frequency_penalty": (0.0, 0.7, -1.5, 2, None),
    "presence_penalty": (0, 1.2, -2),
    "repetition_penalty": (1.3, 0.8),
    "logit_bias": ({"70": 100}, {"80": -100, "81": 3.5}, {"75": 7}, None),
    "min_tokens": (0, 5, 12),
    "ignore_eos": (True, False),
    "stop_token_ids": ([70, 71, 72], [], None),
    "skip_special_tokens": (False,),
    "return_token_ids": (True,),
    "seed": (7, -1, None),
    "top_p": (0.5, 1),
    "top_k": (1, 0, -1),
    "min_p": (0.2,),
    "user": ("me",),
    "n": (1, None),
    "temperature": (0, 0.0),
    "stream": (True, False),
    "allowed_token_ids": ([70, 71, 72, 73, 90, 91],),
}
GOOD_CHAT: Mapping[str, Sequence[Any]] = {
    "logprobs": (True, False),
    "max_completion_tokens": (3, 9),
    "add_generation_prompt": (False, True),
    "tools": (None,),
    "response_format": ({"type": "text"}, None),
    "parallel_tool_calls": (True, None),
}
GOOD_TEXT: Mapping[str, Sequence[Any]] = {
    "logprobs": (0, 1, 4, None),
    "add_special_tokens": (False,),
    "echo": (False,),
}
BAD: Mapping[str, Sequence[Any]] = {
    "temperature": (-1, 2.5, "hot", [0.5]),
    "top_p": (0, 1.5, -0.1, "all"),
    "top_k": (-2, 1.5, "x"),
    "min_p": (-0.1, 1.5),
    "max_tokens": (0, -1, 10**12, "many", 1.5, POSITIONS + 1),
    "n": (0, -1, "two", 1.5, 10**9),
    "stop": ("", ["a", ""], ["a", "b", "c", "d", "e"], 7, [1], {}),
    "frequency_penalty": (2.1, -3, "x"),
    "presence_penalty": (-2.01, 5),
    "repetition_penalty": (0, -1),
    "logit_bias": ({"a": 1}, {"99999": 1}, {"-1": 1}, {"5": "x"}, [1], 3),
    "min_tokens": (-1, 99),
    "stop_token_ids": (["x"], [99999], 5),
    "seed": ("x", 2**70, 1.5),
    "model": ("org/other", 5),
    "stream_options": ({"include_usage": True},),
    "response_format": ({"type": "yaml"}, {"type": "json_schema"}, "json"),
    "allowed_token_ids": ([99999], []),
    "ignore_eos": ("perhaps",),
}
BAD_CHAT: Mapping[str, Sequence[Any]] = {
    "messages": (
        None,
        "hello",
        [],
        [{}],
        ["hello"],
        [{"content": "no role"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}],
        [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
            }
        ],
        [{"role": "user", "content": "long " * 400}],
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
    ),
    "top_logprobs": (3, -2, "x"),
    "tool_choice": ("auto", "always", "required", {"type": "function", "function": {"name": "f"}}),
    "tools": ([], "x", [{}]),
    "logprobs": ("perhaps", 7),
    "max_completion_tokens": (0, -5, 10**9),
}
BAD_TEXT: Mapping[str, Sequence[Any]] = {
    "prompt": (None, "", [], 5, ["a", 5], [99999], [-1], "long " * 400, {"a": 1}, [[]]),
    "logprobs": (-2, 21, "x"),
    "suffix": ("tail",),
}


class Answer(NamedTuple):
    """What the model answers to a request by itself: text and token ids."""

    path: str
    body: Body
    text: str
    tokens: list[int]


#: Requests whose answers are wanted first, so that others can be ended within them.
BEFORE: tuple[tuple[str, Body], ...] = (
    *((CHAT, {"messages": messages}) for messages in CONVERSATIONS[:3]),
    *((TEXT, {"prompt": prompt}) for prompt in (PROMPTS[0], PROMPTS[2])),
)


def ended(seed: int, answers: Sequence[Answer]) -> list[tuple[str, Body]]:
    """Return (path, body) of requests whose answers end early, by stop strings or by tokens."""
    draw = random.Random(seed)
    made: list[tuple[str, Body]] = []
    for number in range(40):
        answer = draw.choice(answers)
        body: Body = {**answer.body, "temperature": 0, "max_tokens": 16, "stream": number % 2 == 0}
        start = draw.randrange(14)
        stops = [answer.text[start : start + draw.choice((1, 2, 4, 6))], answer.text[start + 2 :][:3], "zz"]
        body["stop"] = [stop for stop in stops if stop]
        body["include_stop_str_in_output"] = draw.random() < 0.3
        if number % 4 > 1:
            at = draw.randrange(10)
            body |= {"stop": "zz", "stop_token_ids": [answer.tokens[at]], "return_token_ids": True}
            body["skip_special_tokens"] = draw.random() < 0.5
        body["min_tokens"] = draw.choice((0, 0, 6, 14))
        made.append((answer.path, body))
    return made


def generated(seed: int) -> list[tuple[str, Body]]:
    """Return (path, body) of requests with fields of all kinds, good and bad."""
    draw = random.Random(seed)
    made: list[tuple[str, Body]] = []
    for path, good, bad in ((CHAT, GOOD_CHAT, BAD_CHAT), (TEXT, GOOD_TEXT, BAD_TEXT)):
        pool = {**GOOD, **good}
        for number in range(40):
            body = _base(path, draw)
            for name in draw.sample(sorted(pool), draw.choice((1, 2, 3))):
                body[name] = draw.choice(pool[name])
            if number % 4 == 0:
                body |= {"stream": True, "stream_options": draw.choice((None, {"include_usage": True}))}
            if path == CHAT and body.get("logprobs"):
                body["top_logprobs"] = draw.choice((0, 1, 3))
            made.append((path, body))
        for name, values in {**BAD, **bad}.items():
            made += [(path, {**_base(path, draw), name: value}) for value in values]
    made += [
        (CHAT, {"messages": CONVERSATIONS[0], "temperature": 1, "n": 3, "seed": 3, "max_tokens": 4}),
        (CHAT, {"messages": CONVERSATIONS[0], "temperature": 0, "n": 2, "max_tokens": 4}),
        (CHAT, {"messages": CONVERSATIONS[0], "temperature": 1, "n": 2, "max_tokens": 4, "stream": True}),
        (CHAT, {"messages": CONVERSATIONS[0], "temperature": 0, "logprobs": True, "top_logprobs": 21}),
        (CHAT, {"messages": CONVERSATIONS[0], "temperature": 0, "tools": [TOOL], "tool_choice": "none"}),
        (CHAT, {**_base(CHAT, draw), "tools": [TOOL], "tool_choice": "always"}),
        (TEXT, {"prompt": "a b", "temperature": 1, "n": 2, "logprobs": 1, "max_tokens": 3}),
        (TEXT, {"prompt": ["a b", "c"], "temperature": 1, "n": 2, "max_tokens": 3, "stream": True}),
        (TEXT, {"prompt": "a b", "temperature": 0, "echo": True, "max_tokens": 3}),
        (TEXT, {"prompt": "a b", "temperature": 0, "echo": True, "max_tokens": 3, "logprobs": 2}),
        (TEXT, {"prompt": "a b", "temperature": 0, "echo": True, "max_tokens": 0, "logprobs": 1}),
        (TEXT, {"prompt": "a b", "temperature": 0, "max_tokens": 150, "ignore_eos": True}),
        (TEXT, {"prompt": "word " * 46, "temperature": 0, "max_tokens": 150, "ignore_eos": True}),
    ]
    return made


INPUTS: tuple[Any, ...] = (
    "What is 2 + 3?",
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
)
GOOD_RESPONSE: Mapping[str, Sequence[Any]] = {
    "max_output_tokens": (1, 5, 20),
    "instructions": ("Be brief.", None),
    "stream": (True, False),
    "top_p": (0.5, 1),
    "tools": ([], None),
    "truncation": ("disabled",),
    "metadata": ({"a": "b"}, None),
    "presence_penalty": (0.5,),
    "store": (True, False),
}
BAD_RESPONSE: Mapping[str, Sequence[Any]] = {
    "input": (None, 5, [], [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]),
    "max_output_tokens": (0, -1, 10**12, "many"),
    "temperature": (-1, 2.5, "hot"),
    "top_p": (0, 1.5),
    "truncation": ("maybe",),
    "model": ("org/other",),
    "tools": ("x", [{}]),
}


def responses(seed: int) -> list[tuple[str, Body]]:
    """Return (path, body) of requests to the responses API."""
    draw = random.Random(seed)
    made: list[tuple[str, Body]] = []
    for _ in range(16):
        body = {"input": draw.choice(INPUTS), "temperature": 0, "max_output_tokens": 8}
        for name in draw.sample(sorted(GOOD_RESPONSE), 2):
            body[name] = draw.choice(GOOD_RESPONSE[name])
        made.append((RESPONSES, body))
    for name, values in BAD_RESPONSE.items():
        made += [
            (RESPONSES, {"input": draw.choice(INPUTS), "temperature": 0, "max_output_tokens": 8, name: value})
            for value in values
        ]
    return made


def _base(path: str, draw: random.Random) -> Body:
    if path == CHAT:
        return {"messages": draw.choice(CONVERSATIONS), "temperature": 0, "max_tokens": 12}
    return {"prompt": draw.choice(PROMPTS), "temperature": 0, "max_tokens": 12}


#: (method, path, headers, content) of requests that are not JSON of an object.
RAW: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("POST", CHAT, {"content-type": "application/json"}, "{"),
    ("POST", CHAT, {"content-type": "application/json"}, "[1]"),
    ("POST", CHAT, {"content-type": "application/json"}, ""),
    ("POST", CHAT, {"content-type": "application/json"}, "null"),
    ("POST", TEXT, {"content-type": "text/plain"}, '{"prompt": "a"}'),
    ("POST", TEXT, {"content-type": "application/json"}, '{"prompt": "a", "temperature": NaN}'),
    ("GET", CHAT, {}, ""),
    ("POST", "/v1/nothing", {"content-type": "application/json"}, "{}"),
)
