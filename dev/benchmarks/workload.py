"""What both sides of a benchmark share: the 56 M Llama, and rows of random tokens with lengths spread like
Alpaca's.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VOCAB = 32_000
SEQ_LEN = 512
MATMUL_PARAMETERS = 40.0e6  # of 56.4 M: the input embedding is a look-up
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + ' </s>' }}{%"
    " endgeneration %}{% else %}{{ '<s> ' + m['content'] + ' ' }}{% endif %}{% endfor %}"
)
LLAMA_56M: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": SEQ_LEN,
    "tie_word_embeddings": False,
}
LLAMA_ROLLOUT: dict[str, Any] = {
    **LLAMA_56M,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_SMALL = {
    **LLAMA_56M,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MIXTURE: dict[str, Any] = {
    **_SMALL,
    "model_type": "qwen3_moe",
    "head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}
HYBRID: dict[str, Any] = {
    **_SMALL,
    "model_type": "qwen3_5_text",
    "head_dim": 64,
    "intermediate_size": 704,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
MODELS = {"llama": LLAMA_56M, "mixture": MIXTURE, "hybrid": HYBRID}
PROMPT, ANSWER, GROUP, PPO_EPOCHS = 32, 64, 4, 4  # tokens, tokens, answers to a prompt, epochs over a rollout


def lengths(count: int, seed: int = 0) -> list[int]:
    """``count`` lengths in tokens, log-normal with mean about 110 and a long tail, as in Alpaca (clipped
    to 16 … 512).
    """
    rng = random.Random(seed)
    return [min(SEQ_LEN, max(16, round(rng.lognormvariate(math.log(94), 0.6)))) for _ in range(count)]


def rows(count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of ``count`` documents: ``<s>``, random words, ``</s>``."""
    rng = random.Random(seed + 1)
    return [[1, *(rng.randrange(4, VOCAB) for _ in range(n - 2)), 2] for n in lengths(count, seed)]


def pairs(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Preference pairs of random words: prompts of about 70 tokens, both answers of about 80, together at
    most SEQ_LEN.
    """
    rng = random.Random(seed + 2)

    def words(mean: int, most: int) -> str:
        size = min(most, max(8, round(rng.lognormvariate(math.log(0.85 * mean), 0.55))))
        return " ".join(f"w{rng.randrange(4, VOCAB)}" for _ in range(size))

    return [
        {"prompt": words(70, 240), "chosen": words(80, 240), "rejected": words(80, 240)} for _ in range(count)
    ]


def prompts(count: int, size: int, seed: int = 0) -> list[dict[str, str]]:
    """Prompts of exactly ``size`` random words, with an answer that no reward reads."""
    rng = random.Random(seed + 3)
    return [
        {"prompt": " ".join(f"w{rng.randrange(4, VOCAB)}" for _ in range(size)), "answer": "w4"}
        for _ in range(count)
    ]


def turns(row: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """A pair as TRL's conversations."""
    answers = {name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}
    return {"prompt": [{"role": "user", "content": row["prompt"]}], **answers}


def write_rows(path: Path, found: Sequence[Mapping[str, object]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def write_text_rows(path: Path, documents: list[list[int]]) -> None:
    """The documents as text (``w17 w4711 …``) that the word tokenizer below turns into exactly these ids."""
    with path.open("w", encoding="utf-8") as file:
        for ids in documents:
            file.write(json.dumps({"text": " ".join(f"w{i}" for i in ids[1:-1])}) + "\n")


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer with one word an id; it puts ``<s>`` before and ``</s>`` after a text."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocab = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(4, VOCAB))])}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    body = {
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
            for i, t in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": SEQ_LEN,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
