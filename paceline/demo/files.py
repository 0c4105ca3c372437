"""Files that the demo writes before training, in the run directory's ``material``: data, tokenizer, YAML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.demo.questions import Question, held_out, training
from paceline.demo.tokenizer import MAX_LENGTH, vocabulary, write_tokenizer

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
