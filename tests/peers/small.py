"""The small model, tokenizer, rows and adapter that stand for a file's own: both programs get the same."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.config.import_export.argument_tables import table
from paceline.core.json_types import as_list, as_object

sys.path.insert(0, str(Path(__file__).parents[1]))

ROWS = 8
Row = dict[str, Any]
#: Tokens that the templates write, which the tokenizers of their models have
TOKENS = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|im_start|>", "<|im_end|>",
)  # fmt: skip
_MARKS = re.compile(r"<[^<>\s'\"]{1,40}>|\[/?[A-Z_]{2,30}\]")


def template_tokens(name: str = "llamafactory_templates") -> list[str]:
    """Return every token-like mark of a program's templates, and what ends their answers."""
    found = table(name)
    ends = [
        end
        for formats in as_object(found["templates"]).values()
        for end in [*as_list(as_object(formats).get("stop_words")), as_object(formats).get("end")]
        if end not in (None, "eos_token")
    ]
    marks = _MARKS.findall(json.dumps(found, ensure_ascii=False))
    return sorted({*marks, *map(str, ends), *TOKENS})


def write_model(folder: Path, tokens: Iterable[str] = TOKENS) -> Path:
    """Write a Llama of two layers, and a tokenizer with the templates' tokens; return its folder."""
    import torch
    from support import TINY_LLAMA, write_tokenizer
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    write_tokenizer(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens), "bos_token": TOKENS[0]})
    tokenizer.save_pretrained(folder / "model")
    sizes = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}
    sizes |= {"vocab_size": (len(tokenizer) + 31) // 32 * 32, "max_position_embeddings": 512}
    sizes |= {"eos_token_id": tokenizer.eos_token_id}
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2)).save_pretrained(folder / "model")
    return folder / "model"


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def turn(role: str, content: str) -> Row:
    """Return a turn of a conversation."""
    return {"role": role, "content": content}


def conversations() -> list[Row]:
    """Return rows of messages, of unequal length."""
    from support import instruction_rows

    return [
        {"messages": [turn("user", row["instruction"]), turn("assistant", row["output"])]}
        for row in instruction_rows(ROWS)
    ]


def pairs() -> list[Row]:
    """Return prompts with a chosen and a rejected answer, as texts."""
    from support import preference_rows

    return [
        {name: str(row[name]) for name in ("prompt", "chosen", "rejected")} for row in preference_rows(ROWS)
    ]


def write_adapter(folder: Path, keys: Mapping[str, object]) -> Path:
    """Write an adapter of the file's rank and modules whose second factor is not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    target = str(keys.get("lora_target", "all"))
    rank = int(str(keys.get("lora_rank", 8)))
    config = LoraConfig(
        r=rank,
        lora_alpha=int(str(keys.get("lora_alpha") or 2 * rank)),
        target_modules="all-linear" if target == "all" else [name.strip() for name in target.split(",")],
        use_rslora=bool(keys.get("use_rslora")),
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "model"), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder / "adapter")
    return folder / "adapter"
