"""``response_format``: what is answered parses, by the judgement of the models that the schemas come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from support import write_tokenizer

pytest.importorskip("llguidance")
openai = pytest.importorskip("openai")
ASKED: Any = [{"role": "user", "content": "What is 2 + 3?"}]
Short = Annotated[str, Field(max_length=3)]
Digit = Annotated[int, Field(ge=-3, le=12)]


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: Digit
    name: Short | None


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    begin: Point
    kind: Literal["a", 'b"é']


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    leaf: bool
    below: Annotated[list[Tree], Field(max_length=1)]


FORMS: list[Any] = [
    Point,
    Line,
    Tree,
    bool,
    Literal["yes", "no", 3],
    Annotated[list[Digit], Field(min_length=1, max_length=3)],
    Annotated[list[Line | Digit], Field(max_length=2)],
    tuple[bool, Short],
    Annotated[str, Field(pattern=r"^[a-c]{2}-\d$")],
    Annotated[float, Field(ge=0, le=1)] | None,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from starlette.testclient import TestClient
    from transformers import LlamaConfig, LlamaForCausalLM

    from paceline.evaluation.serve import front, load, name_of

    made: Path = write_tokenizer(tmp_path_factory.mktemp("formed") / "mine")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=320, max_position_embeddings=512, initializer_range=0.3, **sizes)
    LlamaForCausalLM(config).save_pretrained(made)
    with TestClient(front(load(made, name_of(made), "float32"), "the-key")) as client:
        client.base_url = "http://127.0.0.1"
        yield openai.OpenAI(
            api_key="the-key", base_url="http://127.0.0.1/v1", http_client=client, max_retries=0
        )


def form(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def ask(served: Any, form: Any, **more: Any) -> Any:
    given = {"temperature": 1, "seed": 1, "max_tokens": 250, **more}
    return served.chat.completions.create(model="mine", messages=ASKED, response_format=form, **given)


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_answers_are_what_the_schema_says(served: Any, number: int) -> None:
    judge = TypeAdapter(FORMS[number])
    wanted = form(judge.json_schema())
    choices = ask(served, wanted, n=4, logprobs=True, top_logprobs=3).choices
    ended = [choice for choice in choices if choice.finish_reason == "stop"]
    assert len(ended) >= 2
    for choice in ended:
        judge.validate_json(choice.message.content, strict=True)
        assert all(score.logprob > -1000 for score in choice.logprobs.content)
    if number > 2:
        return
    again = {choice.index: "" for choice in choices}
    for event in ask(served, wanted, n=4, stream=True):
        for part in event.choices:
            again[part.index] += part.delta.content or ""
    assert again == {choice.index: choice.message.content for choice in choices}


def test_an_object_of_any_form_and_no_form(served: Any) -> None:
    told = [ask(served, {"type": "json_object"}, seed=seed, n=8).choices for seed in range(1)]
    ended = [one.message.content for some in told for one in some if one.finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(one), dict) for one in ended)
    free = ask(served, {"type": "text"}, max_tokens=9).choices[0].message.content
    assert free == ask(served, openai.omit, max_tokens=9).choices[0].message.content
    cut = ask(served, form(Line.model_json_schema()), max_tokens=3).choices[0]
    assert cut.finish_reason == "length" and cut.message.content.lstrip().startswith("{")


def test_the_other_apis_and_the_clients_own_classes(served: Any) -> None:
    found = served.chat.completions.parse(
        model="mine", messages=ASKED, response_format=Line, temperature=1, seed=SEED, max_tokens=250
    )
    assert isinstance(found.choices[0].message.parsed, Line)
    reply = served.responses.parse(
        model="mine", input="a", text_format=Line, temperature=1, extra_body={"seed": SEED}
    )
    assert isinstance(reply.output_parsed, Line)
    more = {"response_format": form({"enum": ["only"]}), "temperature": 0}
    text = served.completions.create(model="mine", prompt="a", max_tokens=20, extra_body=more)
    assert json.loads(text.choices[0].text) == "only"


SEED = 1
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("wanted", "more", "words"),
    [
        ({"type": "yaml"}, {}, "'yaml'"),
        ({"type": "json_schema"}, {}, "json_schema must be"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, {}, "schema must be a JSON schema"),
        (form({"type": "nope"}), {}, "Invalid type: nope"),
        (form({"type": "string", "pattern": "("}), {}, "unclosed group"),
        (form({"$ref": "http://127.0.0.1/x"}), {}, "does not fetch"),
        (form({"$ref": "#"}), {}, "leads to itself"),
        (form({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}), {}, "leads to itself"),
        (form({"not": {"type": "string"}}), {}, 'Unimplemented keys: .*"not"'),
        (form({"enum": []}), {}, "Unsatisfiable"),
        ({"type": "json_object"}, {"extra_body": {"min_tokens": 3}}, "min_tokens and response_format"),
        ({"type": "json_object"}, {"extra_body": {"ignore_eos": True}}, "ignore_eos and response_format"),
        ({"type": "json_object"}, {"tools": [TOOL]}, "calls of tools exclude"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_held_is_refused(
    served: Any, wanted: Any, more: Any, words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as found:
        ask(served, wanted, stream=stream, **more)
    assert found.value.body["message"] and found.value.body["param"]
