"""A reward model as judge: what can be one, and that every document gets the score of its own last token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer
from transformers import AutoTokenizer

from paceline.core.errors import ConfigError
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.chat_template.template_texts import template_text
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.generation.engine import Completion
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.training.preflight.named_models import check_reward_model
from paceline.training.rollout.generate import RewardModel

OWN = {
    "no end token": "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}",
    "a line after the end": (  # as Qwen's
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
}


class Runner:
    """Scores a document by its last token; counts forwards."""

    forwards = 0

    @property
    def strategy(self) -> Any:
        return self

    def shard_batch(self, batch: Batch) -> Batch:
        return batch

    def forward_no_grad(
        self, handles: Any, role: Role, placed: Batch, ask: frozenset[Output]
    ) -> dict[str, torch.Tensor]:
        assert role is Role.REWARD and ask == {Output.SCORES} and len(placed.document_ids) == 2
        self.forwards += 1
        return {Output.SCORES.value: placed.input_ids[0, (placed.cu_seqlens[1:] - 1).long()].float()}


def test_documents_are_scored_in_order_and_every_rank_asks_as_often() -> None:
    runner = Runner()
    judge = RewardModel(runner, {}, rows=2, pad_id=0, dtype=torch.float32, closing=(), longest=9)
    assert judge([(4, 5), None, (6,), (7, 8, 9)], 2) == [5.0, 0.0, 6.0, 9.0] and runner.forwards == 2
    assert judge([(4, 5)], 3) == [5.0] and runner.forwards == 5
    assert judge([], 1) == [] and runner.forwards == 6  # a rank without prompts


@pytest.mark.parametrize("template", ["chatml", "llama3", "alpaca", "plain", *OWN])
def test_an_answer_is_read_as_a_row_that_trains_a_reward_model(tokenizer_dir: Path, template: str) -> None:
    """Closed like the row, with what the template writes after the stop token; cut short or not."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    tokenizer.chat_template = OWN.get(template) or template_text(template)
    encoder = Encoder(tokenizer, "assistant")
    asked: Message = {"role": "user", "content": "q"}
    row = encoder.encode([Example(messages=(asked, {"role": "assistant", "content": "r"}))])[0]
    prompt = encoder.encode_prompts([Example(messages=(asked,))])[0]
    assert isinstance(row, Encoded) and isinstance(prompt, Encoded)
    whole, start = row.input_ids.tolist(), prompt.input_ids.tolist()
    stop = next(n for n in range(len(start), len(whole)) if whole[n] in encoder.stop_token_ids())
    judge = RewardModel(Runner(), {}, 2, 0, torch.float32, encoder.closing(), longest=len(whole))
    ended = Completion(tuple(whole[len(start) : stop + 1]), torch.zeros(0), ended=True)
    cut = Completion(ended.tokens[:-1], torch.zeros(0), ended=False)
    assert [list(judge.document(start, one)) for one in (ended, cut)] == [whole, whole]
    assert (len(whole) > stop + 1) is (template == "a line after the end")
    full = replace(judge, longest=len(start) + 1)
    assert full.document(start, cut)[: len(start) + 1] == tuple(whole[: len(start) + 1])


@pytest.fixture
def folder(tmp_path: Path, tokenizer_dir: Path) -> Any:
    def make(
        name: str,
        kind: str = "LlamaForSequenceClassification",
        labels: int = 1,
        tokenizer: Path | None = tokenizer_dir,
    ) -> Path:
        place = tmp_path / name
        place.mkdir()
        config = {
            "model_type": "llama",
            "architectures": [kind],
            "id2label": {str(i): f"LABEL_{i}" for i in range(labels)},
        }
        (place / "config.json").write_text(json.dumps(config))
        for file in tokenizer.iterdir() if tokenizer else ():
            (place / file.name).write_bytes(file.read_bytes())
        return place

    return make


def test_what_can_judge(folder: Any, tmp_path: Path, tokenizer_dir: Path) -> None:
    check_reward_model(str(folder("good")), tokenizer_dir)
    other = write_tokenizer(tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    text["added_tokens"][-1]["content"] = "<|another|>"
    text["model"]["vocab"] = {
        ("<|another|>" if i == text["added_tokens"][-1]["id"] else w): i
        for w, i in text["model"]["vocab"].items()
    }
    (other / "tokenizer.json").write_text(json.dumps(text))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    wrong = [
        (folder("speaks", "LlamaForCausalLM"), "rewards.model", "LlamaForCausalLM"),
        (folder("two", labels=2), "rewards.model", "2 labels"),
        (folder("reads", tokenizer=other), "rewards.tokenizer", "another"),
        (tmp_path / "nowhere", "rewards.model", "paceline export"),
        (adapter, "rewards.model", "--merge"),
    ]
    for place, code, said in wrong:
        with pytest.raises(ConfigError, match=code) as raised:
            check_reward_model(str(place), tokenizer_dir)
        assert said in str(raised.value), place
