"""``paceline demo --algorithm vision``: a small Qwen2.5-VL from scratch learns to name and count shapes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from paceline.core.rundir import RunDir
from paceline.demo import steps as commands
from paceline.demo.files import quoted
from paceline.demo.pictures import (
    HELD_OUT,
    MERGE,
    PATCH,
    PICTURE,
    SIDE,
    SPECIAL,
    TRAINING,
    WORDS,
    sights,
    write_processor,
    write_sights,
)
from paceline.demo.report import Number, read_answers, shown, table_of, times, verdict, write_numbers
from paceline.runlog.history import load_history

STEPS = 160  # enough for the goal
GOAL = 0.90  # of held-out pictures answered right
NAME = "vision"


def demo_vision(options: argparse.Namespace, console: Console, root: Path) -> int:
    """Draw pictures, train, report how many held-out ones are answered right; return the exit code."""
    started, count, run = time.monotonic(), options.steps or STEPS, RunDir.at(root / NAME)
    material, yaml = root / "material", root / f"{NAME}.yaml"
    try:
        write_processor(material / "processor")
        write_sights(material, "train", sights(f"training {options.seed}", TRAINING), f"t{options.seed}")
        write_sights(material, "held_out", sights(f"held-out {options.seed}", HELD_OUT), f"h{options.seed}")
        text = vision_yaml(run.root, material, seed=options.seed, steps=count, nproc=options.nproc)
        yaml.write_text(text, encoding="utf-8")
    except OSError as error:
        raise commands.not_writable(root, error) from error
    console.print(
        f"A Qwen2.5-VL with 0.6 M parameters learns from scratch to name and count shapes: {TRAINING:,}"
        f" pictures to train on, {HELD_OUT} others to test it. {options.nproc} processes, {count} steps."
        f" Everything is written to {root}.\n",
        highlight=False,
    )
    seconds = {"pictures": time.monotonic() - started}
    train = commands.paceline("train", str(yaml), "--nproc", str(options.nproc))
    seconds["training"] = commands.timed(console, "Training", train)
    plot = commands.paceline("plot", str(run.root))
    seconds["plot"] = commands.timed(console, "Drawing the plot", plot, quiet=True)
    started = time.monotonic()
    numbers, file = _numbers(run, material / "held_out.jsonl"), root / "numbers.json"
    seconds["answers"] = time.monotonic() - started
    write_numbers(file, NAME, numbers, seconds)
    console.print(table_of(numbers))
    console.print(times(seconds), highlight=False)
    files = {"plot": run.plot_png, "pictures": material / "held_out", "numbers": file, "config": yaml}
    lines = {name: shown(path) for name, path in files.items()} | {
        "chat": f"paceline chat {shown(run.root)} --image {shown(material / 'held_out/00000.png')}",
        "again": f"paceline train {shown(yaml)} training.output_dir=outputs/mine training.learning_rate=1e-3",
    }
    for line in ("", *(f"  {name:<8} {text}" for name, text in lines.items())):
        console.print(line, highlight=False, soft_wrap=True)
    return verdict(console, numbers, shortened=count < STEPS)


def _numbers(run: RunDir, rows: Path) -> list[Number]:
    """Return the share of held-out pictures that are answered right, and of right tokens at each evaluation.

    ``rows``: their file; the trained model answers them in a process.
    """
    argv = commands.answering(run, rows, initial=False, max_new_tokens=4)
    commands.output_of("Answering", [*argv, "--last"])
    [measured] = read_answers(run)
    evals = sorted(load_history(run).evals.items())
    before, after = (event.metrics["eval_token_accuracy"] for _, event in (evals[0], evals[-1]))
    return [
        Number("held-out pictures answered right", None, float(measured["exact_match"]), GOAL),
        Number("tokens of their answers that are right", before, after),
    ]


def vision_yaml(run: Path, material: Path, *, seed: int, steps: int, nproc: int) -> str:
    """Return the demo's config: complete, to learn from and to change."""
    ids = {token: i for i, token in enumerate(SPECIAL)}
    return f"""\
# The demo's config: change a value and train again, e.g.
#   paceline train THIS_FILE training.output_dir=outputs/mine training.learning_rate=1e-3 --nproc 2

model:
  config:                       # from scratch: a small Qwen2.5-VL, tower and language model
    model_type: qwen2_5_vl
    image_token_id: {ids[PICTURE]}
    video_token_id: {ids["<|video_pad|>"]}
    vision_start_token_id: {ids["<|vision_start|>"]}
    vision_end_token_id: {ids["<|vision_end|>"]}
    tie_word_embeddings: true
    text_config:
      model_type: qwen2_5_vl_text
      vocab_size: {len(SPECIAL) + len(WORDS)}
      hidden_size: 96
      intermediate_size: 256
      num_hidden_layers: 2
      num_attention_heads: 4
      num_key_value_heads: 4
      max_position_embeddings: 512
      rope_parameters: {{rope_type: default, rope_theta: 100.0, mrope_section: [2, 5, 5]}}
      initializer_range: 0.05
    vision_config:
      depth: 2
      hidden_size: 96
      intermediate_size: 192
      num_heads: 4
      patch_size: {PATCH}
      spatial_merge_size: {MERGE}
      window_size: {SIDE}
      fullatt_block_indexes: [0, 1]
      out_hidden_size: 96
      initializer_range: 0.05
  tokenizer: {quoted(material / "processor")}   # and the image processor's settings

data:
  train: {quoted(material / "train.jsonl")}      # pictures by their paths
  eval: {quoted(material / "held_out.jsonl")}    # other pictures
  max_length: 128
  train_on: assistant

training:
  algorithm: sft
  distributed_strategy: {"ddp" if nproc > 1 else "single"}
  mixed_precision: "no"
  freeze: [vision]              # by default the tower stays as loaded; this one is new,
  unfreeze: [vision]            # so it is trained as well
  per_device_train_batch_size: {max(1, 16 // nproc)}
  num_train_epochs: 1000        # max_steps ends it
  max_steps: {steps}
  learning_rate: 2e-3
  lr_scheduler_type: cosine
  warmup_steps: {max(1, min(30, steps // 10))}
  adam_beta2: 0.99
  seed: {seed}
  dataloader_num_workers: 1     # a thread makes the pixels of the next step
  eval_strategy: steps
  eval_steps: {max(1, steps // 6)}
  eval_on_start: true
  per_device_eval_batch_size: 32
  save_strategy: steps
  save_steps: {max(1, steps // 3)}
  logging_steps: 20
  report_to: [tensorboard]
  output_dir: {quoted(run)}
"""
