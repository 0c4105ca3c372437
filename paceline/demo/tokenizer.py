"""The demo's tokenizer as Hugging Face files, written without a library: whole words and single letters."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

from paceline.demo.questions import KINDS

PAD, BOS, EOS, UNK, USER, ASSISTANT = "<pad>", "<bos>", "<eos>", "<unk>", "<|user|>", "<|assistant|>"
SPECIAL = (PAD, BOS, EOS, UNK, USER, ASSISTANT)
MAX_LENGTH = 128  # tokens; a packed row holds several questions

# Tokens between {% generation %} and {% endgeneration %} have loss.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' }}{% generation %}{{- message['content'] + eos_token }}{% endgeneration %}"
    "{%- else %}{{- '<|user|>' + message['content'] }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def whole_words() -> list[str]:
    """Return texts that are one token: first words of the wordings, and the others with a leading space."""
    tokens: set[str] = set()
    for kind in KINDS.values():
        for wording in kind.wordings:
            tokens.update(re.findall(r"^[A-Z][a-z]+| [a-z]+", wording))
    return sorted(tokens)


def vocabulary() -> list[str]:
    """Return all tokens; the id is the index."""
    return [
        *SPECIAL,
        *whole_words(),
        *string.ascii_lowercase,
        *string.ascii_uppercase,
        *string.digits,
        *" '.,?!-\n",
    ]


def tokenizer_json() -> dict[str, Any]:
    """Return ``tokenizer.json``: a word-level model after a split into whole words or single characters."""
    words = "|".join(re.escape(w).replace("\\ ", " ") for w in whole_words())
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": t,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i, t in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": f"(?:{words})\\b|[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(vocabulary())}, "unk_token": UNK},
    }


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(), ensure_ascii=False, indent=1), encoding="utf-8"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
