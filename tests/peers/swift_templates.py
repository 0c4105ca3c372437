#!/usr/bin/env python
"""Write what ms-swift 4.6.0 makes of conversations by each of its templates: text, and what of it has loss.

    /opt/envs/swift/bin/python tests/peers/swift_templates.py TABLE OUT

TABLE is ``arguments/swift_templates.json``. The tokenizer has a token a byte, and the templates' own marks as
special ones. OUT holds, by way of use and template, a text a conversation; what has loss stands in «».
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

#: way of use → the options of the template
WAYS: dict[str, dict[str, Any]] = {
    "sft": {},
    "last": {"loss_scale": "last_round"},
    "prompt": {"mode": "transformers"},
}
_THOUGHT, _EMPTY = "<think>\nLet me see.\n</think>\n\n", "<think>\n\n</think>\n\n"
CONVERSATIONS: list[list[tuple[str, str]]] = [
    [("user", "What is 2 + 2?"), ("assistant", "4.")],
    [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And?"), ("assistant", "Bye")],
    [("user", "Hi"), ("assistant", f"{_THOUGHT}Hey"), ("user", "So?"), ("assistant", f"{_EMPTY}Done")],
    [("user", "A"), ("user", "B"), ("assistant", "C "), ("assistant", "D")],
]
#: Templates of the models that are trained most, and of each thing that a template may do
NAMES = (
    *("chatml", "qwen2_5", "qwen3", "qwen3_thinking", "qwen3_nothinking", "qwq", "llama3_2", "deepseek_r1"),
    *("deepseek_v3_1", "glm4", "glm4_5", "glm4_7", "gemma3_text", "internlm2", "phi4", "mistral_nemo"),
    *("minimax_m2", "xing4_0", "llama", "ernie"),
)
_MARKS = re.compile(r"<[^<>{} \n]{2,40}>|\[/?[A-Z_]{2,20}\]|\]~!?b[\[\]]|\[e~\[|\|\|\|IP_ADDRESS\|\|\|")


def tokenizer(templates: dict[str, Any]) -> Any:
    """Return a tokenizer with one token a byte, and one for each mark of the templates."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    listed = [formats for formats in templates.values() if "own" not in formats]
    written = json.dumps(listed, ensure_ascii=False)
    marks = sorted({*_MARKS.findall(written), "<s>", "</s>", "<eos>"} - {"<think>", "</think>"})
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in marks])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", bos_token="<s>")


def marked(coder: Any, ids: list[int], labels: list[bool]) -> str:
    """Return the text of tokens, those with loss in «»; the first is never predicted."""
    pairs = zip(ids, [False, *labels[1:]], strict=True)
    text = ""
    for loss, group in itertools.groupby(pairs, lambda pair: pair[1]):
        part = coder.decode([token for token, _ in group])
        text += f"«{part}»" if loss else part
    return text


def conversation(way: str, turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the turns that are given in a way of use: a prompt has no answer."""
    given = turns[:-1] if way == "prompt" else turns
    return [{"role": role, "content": text} for role, text in given]


def main() -> None:
    """Ask ms-swift."""
    from swift.template.base import Template
    from swift.template.register import TEMPLATE_MAPPING

    templates = json.loads(Path(sys.argv[1]).read_text())["templates"]
    coder = tokenizer(templates)
    config = types.SimpleNamespace(is_encoder_decoder=False)
    facts = {"max_model_len": 4096, "task_type": "causal_lm", "model_dir": ".", "config": config}
    coder.model_info = types.SimpleNamespace(torch_dtype=None, is_multimodal=False, **facts)
    coder.model_meta = types.SimpleNamespace(is_multimodal=False, model_type="any", template=None)
    found: dict[str, dict[str, list[str | None]]] = {way: {} for way in WAYS}
    for name, (way, options) in itertools.product(NAMES, WAYS.items()):
        meta, formats = TEMPLATE_MAPPING[name], templates[name]
        scale = options.get("loss_scale", "default")
        scale += "+ignore_empty_think" * bool(meta.is_thinking and meta.non_thinking_prefix)
        encoder = (meta.template_cls if "does" in formats else Template)(coder, meta, loss_scale=scale)
        encoder.set_mode(options.get("mode", "train"))
        asked = [
            conversation(way, turns) for turns in CONVERSATIONS if way != "prompt" or turns[-2][0] == "user"
        ]
        found[way][name] = [_answer(coder, encoder, messages) for messages in asked]
    lines = [f" {json.dumps(way)}: {_lines(texts)}" for way, texts in found.items()]
    Path(sys.argv[2]).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _answer(coder: Any, encoder: Any, messages: list[dict[str, str]]) -> str | None:
    try:
        encoded = encoder.encode({"messages": messages})
    except (AssertionError, ValueError):  # no system turns; no prompts without the tokenizer's template
        return None
    labels = encoded.get("labels") or [-100] * len(encoded["input_ids"])
    return marked(coder, encoded["input_ids"], [label != -100 for label in labels])


def _lines(texts: dict[str, list[str | None]]) -> str:
    rows = (f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in texts.items())
    return "{\n" + ",\n".join(rows) + "\n }"


if __name__ == "__main__":
    main()
