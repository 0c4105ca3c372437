"""Make the runs that later versions must go on from: ``python make.py COMMIT SOURCES RUN...``.

SOURCES is a checkout of COMMIT (``git worktree add /tmp/old COMMIT``): its own code trains and prepares. The
model has about 1,100 parameters, so that a checkpoint takes some 35 kB. Kept are ``inputs/`` and, a commit,
the checkpoint of step ``SAVED`` and the plan of each RUN, the rows that ``sft`` prepared, and ``then.json``:
the key of every kind's rows, and the steps after the checkpoint as that commit trained them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS, SAVED = 5, 3
LETTERS = "abcdefghijklmnopqrstuvwxyz .ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|unknown|>")
WORDS = ("red", "stone", "river", "cloud", "lamp", "horse")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MODEL = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
RUNS: dict[str, dict[str, Any]] = {
    "sft": {"data": {"train": "rows.jsonl"}, "training": {}},
    "lora": {
        "data": {"train": "rows.jsonl"},
        "lora": {"r": 2, "alpha": 4},
        "training": {},
    },
    "kto": {"data": {"train": "labelled.jsonl"}, "training": {"algorithm": "kto"}},
    "classification": {
        "data": {"train": "classified.jsonl"},
        "training": {"algorithm": "classification"},
    },
    "dpo": {"data": {"train": "pairs.jsonl"}, "training": {"algorithm": "dpo"}},
    "grpo": {
        "data": {"train": "prompts.jsonl"},
        "training": {
            "algorithm": "grpo",
            "per_device_train_batch_size": 4,
            "rollout": {
                "rewards": [{"name": "regex", "options": {"pattern": "[a-f]"}}],
                "num_generations": 4,
                "max_completion_length": 6,
            },
        },
    },
}


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token a letter."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {text: i for i, text in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", unk_token="<|unknown|>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_inputs(folder: Path) -> None:
    """Write the tokenizer, the rows and a config a run."""
    write_tokenizer(folder / "tokenizer")
    rows = [(f"shout {a} {b}", f"{a} {b}".upper()) for a in WORDS for b in WORDS[:4]]
    files = {
        "rows": [{"instruction": asked, "output": answer} for asked, answer in rows],
        "pairs": [{"prompt": asked, "chosen": answer, "rejected": answer.lower()} for asked, answer in rows],
        "labelled": [
            {"prompt": asked, "completion": answer, "label": i % 3 > 0}
            for i, (asked, answer) in enumerate(rows)
        ],
        "classified": [{"text": asked, "label": answer[0]} for asked, answer in rows],
        "prompts": [{"prompt": asked, "answer": answer} for asked, answer in rows],
    }
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, own in RUNS.items():
        config = {
            "model": {"config": MODEL, "tokenizer": "tokenizer"},
            **own,
            "data": {"max_length": 48, "cache_dir": "cache", **own["data"]},
            "training": {
                "output_dir": f"runs/{name}",
                "max_steps": STEPS,
                "learning_rate": 1e-2,
                "per_device_train_batch_size": 2,
                "logging_steps": 1,
                "save_strategy": "steps",
                "save_steps": SAVED,
                "report_to": "none",
                "seed": 7,
                **own["training"],
            },
        }
        (folder / f"{name}.yaml").write_text(json.dumps(config, indent=1) + "\n")


def after_saved(run: Path) -> list[dict[str, Any]]:
    """Return the steps of a run after the saved one: samples, loss and norm."""
    lines = [json.loads(line) for line in (run / "events/rank-00000.events.jsonl").read_text().splitlines()]
    return [
        {key: line[key] for key in ("step", "loss", "grad_norm", "sample_digest")}
        for line in lines
        if line["kind"] == "step" and line["step"] > SAVED
    ]


def main(commit: str, sources: str, *kept: str) -> None:
    """Train every run with the code of ``sources`` and keep the least that a later version needs."""
    inputs, folder = HERE / "inputs", HERE / commit
    if not inputs.is_dir():
        write_inputs(inputs)
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PACELINE_LEDGER"] = "off"
    keys, steps = {}, {}
    with tempfile.TemporaryDirectory() as made:
        work = Path(shutil.copytree(inputs, Path(made) / "work"))
        for name in RUNS:
            argv = [sys.executable, "-m", "paceline.cli.main", "train", f"{name}.yaml", "--nproc", "1"]
            subprocess.run(argv, cwd=work, env=environment, check=True)
            run = work / "runs" / name
            saved = run / f"checkpoints/step-{SAVED:08d}"
            state = json.loads((saved / "state.json").read_text())
            keys[name] = {key: state[key] for key in ("train_fingerprint", "data_definition")}
            if name in kept:
                steps[name] = after_saved(run)
                shutil.copytree(saved, folder / name / saved.name)
                plan = json.loads((run / "plan.json").read_text()) | {"run_dir": ""}
                (folder / name / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
        prepared = f"cache/prepared/{keys['sft']['train_fingerprint']}"
        shutil.copytree(work / prepared, folder / prepared)
    (folder / "then.json").write_text(json.dumps({"keys": keys, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
