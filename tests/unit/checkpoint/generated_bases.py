"""Bases as people download them: stop tokens in three files, templates in four layouts, files beside them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SPECIALS = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|eot|>")
FIRST = 256  # id of the first of them
LAYOUTS = ("none", "jinja", "in_config", "additional", "list", "list_without_tool_use")
BESIDE = {
    "preprocessor_config.json": b'{"image_size": 32}',
    "processor_config.json": b'{"processor_class": "AnyProcessor"}',
    "special_tokens_map.json": b'{"eos_token": "</s>"}',
    "LICENSE": b"do as you like",
    "modeling_any.py": b"raise SystemExit  # nobody runs this\n",
}
LEFT = {"README.md": b"# the base", "quantize_config.json": b"{}", "training_args.bin": b"\x80\x04"}


@dataclass(frozen=True)
class Base:
    """``ends``: marks that end a turn, of the default template and of the one for tools; ``writes``: the
    token that the model writes, again and again.
    """

    folder: Path
    layout: str
    ends: tuple[str, ...]
    writes: int


def template(end: str, tools: bool) -> str:
    listed = (
        "{% for t in tools or [] %}<|im_start|>tool {{ t | tojson }}<|im_end|>{% endfor %}" if tools else ""
    )
    return (
        listed + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + end + "\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def one_of(rng: random.Random, *, several: bool = True) -> Any:
    """Return what a config says of a token: nothing, an id or a list of ids."""
    ids = [FIRST + 1, FIRST + 4, FIRST + 5, 65, 66]
    return rng.choice(
        [None, rng.choice(ids), rng.sample(ids, rng.randint(1, 3))] if several else [None, FIRST + 2]
    )


def make_base(folder: Path, seed: int, writes: int | None = None) -> Base:
    """Write a base with weights, tokenizer and the rest."""
    rng = random.Random(seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    marks = ("</s>", "<|im_end|>", "<|eot|>")
    ends = (rng.choice(marks), rng.choice(marks))
    config, generation = one_of(rng), rng.choice([None, {"eos_token_id": one_of(rng), "temperature": 0.7}])
    chosen = rng.choice([FIRST + 1, FIRST + 4, FIRST + 5, 65, 66, 67])
    writes = chosen if writes is None else writes
    _write_model(folder, config, one_of(rng, several=False), generation, writes)
    _write_tokenizer(folder, rng, layout, ends)
    for name, content in {**BESIDE, **LEFT}.items():
        if name in LEFT or rng.random() < 0.6:
            (folder / name).write_bytes(content)
    used = {"none": ends[:0], "additional": ends, "list": ends}.get(layout, ends[:1])
    return Base(folder, layout, used, writes)


def _write_model(folder: Path, eos: Any, pad: Any, generation: Any, writes: int) -> None:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=264,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=FIRST,
            eos_token_id=eos,
            pad_token_id=pad,
            initializer_range=0.1,
            **sizes,
        )  # fmt: skip
    )
    with (
        torch.no_grad()
    ):  # feature 0 of the residual stream is a large constant that one row of the head reads
        model.model.embed_tokens.weight[:, 0] = 5.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[writes, 0] = 40.0
    if generation is not None:
        model.generation_config = GenerationConfig(**generation, do_sample=True)
    model.save_pretrained(folder)
    if generation is None:
        (folder / "generation_config.json").unlink(missing_ok=True)


def _write_tokenizer(folder: Path, rng: random.Random, layout: str, ends: tuple[str, str]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    named = {"bos_token": rng.choice([None, "<s>"]), "pad_token": rng.choice([None, "<pad>", "</s>"])}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", **named)
    plain, tools = template(ends[0], layout == "jinja"), template(ends[1], True)
    if layout == "jinja":
        fast.chat_template = plain
    elif layout == "additional":
        fast.chat_template = {"default": plain, "tool_use": tools, "rag": "{{ documents }}"}
    fast.save_pretrained(folder)
    own: dict[str, Any] = {
        "in_config": plain,
        "list": [{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}],
        "list_without_tool_use": [
            {"name": "default", "template": plain},
            {"name": "rag", "template": "{{ 1 }}"},
        ],
    }
    if layout in own:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": own[layout]}))
