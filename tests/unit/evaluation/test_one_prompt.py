"""60 conversations × 12 chat templates: the server, chat, ``generate``, rollouts and training read the same
token ids, or all refuse; where the conversation is plain, they are those of Transformers' own rendering.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, swept, write_tokenizer

sys.path.insert(0, str(ROOT / "tests/unit/data"))
from conversation_templates import PARTS, PLAIN, STRINGS, THINKS  # noqa: E402
from data_fixtures import prepared_from, write_jsonl  # noqa: E402

from paceline.config.sections.data import DataSection  # noqa: E402
from paceline.config.sections.model import ModelSection  # noqa: E402
from paceline.core.errors import ConfigError, DataError  # noqa: E402
from paceline.data.rows.kinds.prompts import PROMPTS  # noqa: E402
from paceline.evaluation.file_rows import read_file  # noqa: E402
from paceline.evaluation.prompts import PromptRenderer, default_system, prompts_of  # noqa: E402

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
KEY = {"authorization": "Bearer the-key"}
Body = dict[str, Any]
#: DeepSeek's way: arguments are joined to the text, so an object of arguments is a TypeError.
JOINED = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% if m['tool_calls'] is defined and m['tool_calls'] is not none %}{% for t in m['tool_calls'] %}"
    "{{ '<|tool|>' + t['type'] + t['function']['name'] + '\n' + t['function']['arguments'] }}"
    "{% endfor %}{% endif %}<|end|>{% elif m['role'] == 'tool' %}<|out|>{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: Mistral's way: turns alternate, or an error is raised; the system text stands in the last question.
STRICT = (
    "{% if messages[0].role == 'system' %}{% set first, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set first, rest = '', messages %}{% endif %}{{ bos_token }}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {% if loop.last and first %}{{ first }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% else %} {{ m.content | trim }}<|end|>{% endif %}{% endfor %}"
)
#: Gemma's way: no system turn, another name of the assistant.
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<start>model\n{% endif %}"
)
#: GPT-OSS's way: developer's turns, tools beside them, "thinking" with calls.
CHANNELS = (
    "<|system|>knowledge\n{% for m in messages %}{% if m.role in ('developer', 'system') %}"
    "<|dev|>{{ m.content }}{% for t in tools or [] %}\n{{ t.function.name }} "
    "{{ t.function.parameters | tojson }}{% endfor %}<|end|>"
    "{% elif m.role == 'user' %}<|user|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|fn|>{{ m.content | tojson }}<|end|>"
    "{% else %}{% if m.thinking %}<|assistant|>analysis {{ m.thinking }}<|end|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<|assistant|>to={{ c.function.name }} "
    "{{ c.function.arguments | tojson }}<|call|>{% endfor %}"
    "{% if m.content %}<|assistant|>final {{ m.content }}<|end|>{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OWN = {
    path.stem: path.read_text()
    for path in sorted((ROOT / "paceline/data/chat_template/templates").glob("*.jinja"))
}
TEMPLATES = {
    **OWN,
    "thinks": THINKS,
    "strings": STRINGS,
    "roles": PLAIN,
    "parts": PARTS,
    "joined": JOINED,
    "strict": STRICT,
    "no system": NO_SYSTEM,
    "channels": CHANNELS,
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
WORDS = ("What is 2 + 3?", "blue\n\ntiger ", " père 日本", "<|end|>x", "a", '{"a": 1}', "{{ 7 * 7 }}")


def conversations(seed: int) -> list[Body]:
    """Return bodies of requests: messages, and tools where there are calls."""
    draw = random.Random(seed)
    made = [_conversation(draw) for _ in range(60)]
    assert sum("tools" in one for one in made) > 10
    return made


def _conversation(draw: random.Random) -> Body:
    messages: list[Body] = []
    if draw.random() < 0.4:
        messages.append({"role": draw.choice(("system", "developer")), "content": _content(draw)})
    tools = draw.random() < 0.4
    for number in range(draw.choice((0, 0, 1, 2))):
        messages.append({"role": "user", "content": _content(draw)})
        if tools and draw.random() < 0.7:
            arguments: Any = {"city": draw.choice(WORDS), "days": number}
            call: Body = {
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps(arguments)},
            }
            if draw.random() < 0.2:
                call["function"]["arguments"] = arguments
            if draw.random() < 0.8:
                call["id"] = f"call0000{number}"
            turn: Body = {
                "role": "assistant",
                "content": draw.choice((None, "", "I look")),
                "tool_calls": [call],
            }
            if draw.random() < 0.3:
                turn["reasoning_content"] = "because"
            result = {"role": "tool", "content": draw.choice(WORDS), "tool_call_id": call.get("id")}
            messages += [turn, result]
        answer: Body = {"role": "assistant", "content": _content(draw)}
        if draw.random() < 0.2:
            answer["reasoning_content"] = "a thought"
        if draw.random() < 0.3:
            answer |= {"tool_calls": None, "function_call": None}
        messages.append(answer)
    last: Body = {"role": "user", "content": _content(draw)}
    if draw.random() < 0.1:
        last["name"] = "ann"
    return {"messages": [*messages, last], **({"tools": [TOOL]} if tools else {})}


def _content(draw: random.Random) -> Any:
    text = draw.choice(WORDS)
    if draw.random() < 0.7:
        return text
    return [{"type": "text", "text": one} for one in (text, draw.choice(WORDS))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=320, max_position_embeddings=4096, **sizes)).eval()


def with_template(folder: Path, template: str) -> Any:
    from transformers import AutoTokenizer

    write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template, tokenizer.bos_token = template, "<|pad|>"
    tokenizer.save_pretrained(folder)
    return tokenizer


def of_training(folder: Path, bodies: list[Body], place: Path) -> list[list[int] | None]:
    """The prompts of a file's rows, as ``generate`` and rollouts read them; None where a row is refused."""
    path = write_jsonl(place, [{"prompt": one["messages"], **_tools(one)} for one in bodies])
    section = DataSection(train=path, on_bad_row="skip", max_length=4096, num_proc=1)
    try:
        rows = read_file(section, ModelSection(tokenizer=str(folder)), PROMPTS)
    except DataError:
        return [None] * len(bodies)
    found = dict(zip(rows.numbers, (one.tolist() for one in rows.documents), strict=True))
    prompts = [[max(i, ~i) for i in found[n]] if n in found else None for n in range(len(bodies))]
    if folder.name not in OWN:
        return prompts
    cache = place.with_suffix(".cache")
    table = prepared_from(path, folder, cache, rows="prompts", on_bad_row="skip", max_length=4096).train
    assert [table.row(n)[0].tolist() for n in range(len(table))] == [
        one for one in prompts if one is not None
    ]
    return prompts


def _tools(body: Body) -> Body:
    return {"tools": body.get("tools")}


def is_plain(messages: list[Body]) -> bool:
    """Whether every program hands the conversation to the template as it stands."""
    return all(
        one.keys() == {"role", "content"} and one["role"] != "developer" and isinstance(one["content"], str)
        for one in messages
    )


def by_transformers(tokenizer: Any, messages: list[Body]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", swept(sorted(TEMPLATES), 3))
def test_a_conversation_has_one_prompt(name: str, model: Any, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from paceline.evaluation.serve import front
    from paceline.evaluation.server.desk import Served
    from paceline.generation.answer import Sampling

    tokenizer = with_template(tmp_path / name, TEMPLATES[name])
    bodies = conversations(36)
    trained = of_training(tmp_path / name, bodies, tmp_path / "rows.jsonl")
    assert sum(one is not None for one in trained) >= (20 if name != "strict" else 8)
    app = front(Served("mine", model, tokenizer, Sampling(1), (1,), 0), "the-key")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for body, ids in zip(bodies, trained, strict=True):
            found = client.post("/v1/chat/completions", json={**body, "return_token_ids": True}, headers=KEY)
            if ids is None:
                assert found.status_code == 400 and found.json()["error"]["message"], (body, found.text)
            else:
                assert found.json().get("prompt_token_ids") == ids, (body, found.text)
            if "tools" not in body:
                try:
                    (chatted,) = prompts_of(tokenizer, [body["messages"]])
                except ConfigError:
                    chatted = None
                assert chatted == ids
                if is_plain(body["messages"]) and ids is not None and name != "parts":
                    assert by_transformers(tokenizer, body["messages"]) == ids


def test_the_system_turn_of_training_is_before_each_conversation(tmp_path: Path) -> None:
    """``data.default_system`` of the run, in chat and in the server."""
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    for name in ("plan.json", "config.json"):
        (tmp_path / name).write_text(json.dumps({"data": {"default_system": "be brief"}}))
    system = default_system(tmp_path)
    assert system == "be brief" and default_system(tmp_path / "tokenizer" / "a" / "b") is None
    ask, own = {"role": "user", "content": "hi"}, {"role": "system", "content": "sing"}
    first, plain = PromptRenderer(tokenizer, system), PromptRenderer(tokenizer)
    assert first.of_chat([ask]) == plain.of_chat([{"role": "system", "content": "be brief"}, ask])
    assert first.of_chat([own, ask]) == plain.of_chat([own, ask]) != first.of_chat([ask])
