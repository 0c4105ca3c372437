"""Files that the demo writes before training, in the run directory's ``material``: data, tokenizer, YAML.

The tokenizer is written without a library: whole words and single letters.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.demo.questions import KINDS, Question, held_out, training

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


TRAIN_QUESTIONS = 12_000
HELD_OUT_QUESTIONS = 240
STEPS = 400  # enough for the goal of 90 %
SAVE_STEPS = 20


@dataclass(frozen=True)
class Material:
    """The files written, and the held-out questions in the order of their file."""

    root: Path
    questions: tuple[Question, ...] = ()

    @property
    def train(self) -> Path:
        return self.root / "train.jsonl"

    @property
    def held_out(self) -> Path:
        return self.root / "held_out.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    @property
    def yaml(self) -> Path:
        return self.root / "demo.yaml"

    def is_whole(self) -> bool:
        """Whether all files exist and contain the questions ``questions``."""
        files = (self.train, self.held_out, self.tokenizer)
        return all(f.exists() for f in files) and self.held_out.read_text("utf-8") == conversations(
            self.questions
        )


def make_material(
    run: Path,
    *,
    seed: int,
    steps: int = STEPS,
    save_steps: int = SAVE_STEPS,
    schedule: str = "cosine",
    num_train: int = TRAIN_QUESTIONS,
    num_held_out: int = HELD_OUT_QUESTIONS,
) -> Material:
    """Write everything that training needs below ``run``. Raises OSError."""
    questions = held_out(seed, num_held_out)
    material = Material(run / "material", tuple(questions))
    write_tokenizer(material.tokenizer)
    write_questions(material.held_out, questions)
    write_questions(material.train, training(seed, num_train, {q.word for q in questions}))
    text = yaml_text(run, material, seed=seed, steps=steps, save_steps=save_steps, schedule=schedule)
    material.yaml.write_text(text, encoding="utf-8")
    return material


def quoted(path: Path) -> str:
    """Return a path as a YAML string (JSON strings are valid YAML)."""
    return json.dumps(str(path), ensure_ascii=False)


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write one conversation per line: the question and its answer."""
    path.write_text(conversations(questions), encoding="utf-8")


def conversations(questions: Iterable[Question]) -> str:
    """Return ``questions`` as conversations, one JSON line each."""
    rows = (
        [{"role": "user", "content": q.prompt}, {"role": "assistant", "content": q.answer}] for q in questions
    )
    return "".join(json.dumps({"messages": messages}) + "\n" for messages in rows)


def yaml_text(run: Path, material: Material, *, seed: int, steps: int, save_steps: int, schedule: str) -> str:
    """Return the demo's config: complete, to learn from and to change."""
    save_steps = max(1, min(save_steps, steps // 3))
    return f"""\
# The demo's own config: change a value and train again, e.g.
#   paceline train THIS_FILE training.output_dir=outputs/mine training.learning_rate=1e-3 --nproc 2

model:
  config:                       # from scratch: the keys of Transformers' LlamaConfig
    model_type: llama
    vocab_size: {len(vocabulary())}
    hidden_size: 128
    intermediate_size: 384
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 4
    max_position_embeddings: {MAX_LENGTH}
    rope_parameters: {{rope_type: default, rope_theta: 100.0}}
    initializer_range: 0.05
    tie_word_embeddings: true
  tokenizer: {quoted(material.tokenizer)}

data:
  train:
    - path: {quoted(material.train)}
      format: messages
  eval:
    - path: {quoted(material.held_out)}
      format: messages
  max_length: {MAX_LENGTH}
  packing: true                 # short questions share a row; they do not see each other
  train_on: assistant           # the loss counts the answers only

training:
  algorithm: sft
  distributed_strategy: ddp
  mixed_precision: "no"         # so small a model gains nothing from bf16
  per_device_train_batch_size: 11
  gradient_accumulation_steps: 1
  num_train_epochs: 1000        # max_steps ends it
  max_steps: {steps}
  learning_rate: 3e-3
  lr_scheduler_type: {schedule}
  warmup_steps: {max(1, min(40, steps // 10 if schedule == "cosine" else steps // 2))}
  weight_decay: 0.01
  adam_beta2: 0.99
  max_grad_norm: 1.0
  seed: {seed}
  eval_strategy: steps
  eval_steps: {max(save_steps, min(SAVE_STEPS, steps // 3))}
  per_device_eval_batch_size: 64
  save_strategy: steps
  save_steps: {save_steps}
  logging_steps: 20
  report_to: [tensorboard]
  output_dir: {quoted(run)}
"""
