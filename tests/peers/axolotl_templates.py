#!/usr/bin/env python
"""What axolotl 0.19.0 makes of conversations by its own chat templates: tokens, and those that have loss.

    AX/bin/python tests/peers/axolotl_templates.py > tests/unit/data/axolotl_templates.json

Its template strategy is asked, with the tokenizer in ``examples/tokenizer``, whose end of text is the
template's.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ROOT / "paceline" / "config" / "import_export" / "arguments" / "axolotl_templates.json"
_SYSTEM = {"role": "system", "content": " Be kind. "}
_THOUGHT = "<think>\nhm\n</think>\n\n"


def _turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


CONVERSATIONS: list[list[dict[str, str]]] = [
    _turns('Hi "there"', "Hello\\n!"),
    _turns(" Hi", "A", "more?", "B"),
    [_SYSTEM, *_turns("Hi", "A", "x", "y")],
    [_SYSTEM, *_turns("Hi", f"{_THOUGHT}A", "x", f"{_THOUGHT}y")],
]


def main() -> None:
    """Print one case a template: its name, and for each conversation the tokens and the places with loss."""
    logging.disable(logging.CRITICAL)
    formats = json.loads(FORMATS.read_text("utf-8"))["templates"]
    cases = [{"template": name, "answers": _answers(name, str(formats[name]["end"]))} for name in formats]
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


def _answers(name: str, end: str) -> list[Any]:
    from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
    from axolotl.utils.chat_templates import get_chat_template
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "tokenizer")
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>" if end == "eos_token" else end})
    prompter = ChatTemplatePrompter(tokenizer, get_chat_template(name))
    strategy = ChatTemplateStrategy(
        prompter, tokenizer, False, 512, roles_to_train=["assistant"], train_on_eos="turn"
    )
    answers: list[Any] = []
    for turns in CONVERSATIONS:
        try:
            made = strategy.tokenize_prompt({"messages": [dict(turn) for turn in turns]})
        except Exception:  # noqa: BLE001 (a template refuses a turn of the system)
            answers.append(None)
            continue
        labelled = [n for n, label in enumerate(made["labels"]) if label >= 0]
        answers.append([made["input_ids"], labelled])
    return answers


if __name__ == "__main__":
    main()
