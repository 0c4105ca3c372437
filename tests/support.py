"""Helpers that suites share: rows that can be learnt, processes that cannot hang or outlive a test."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm

ROOT = Path(__file__).resolve().parent.parent
WORDS = [
    "red",
    "blue",
    "green",
    "stone",
    "river",
    "cloud",
    "bread",
    "lamp",
    "chair",
    "horse",
    "apple",
    "tiger",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


TINY_LLAMA: dict[str, object] = {  # with the vocabulary of ``write_tokenizer``
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}


def swept(cases: Iterable[Any], every: int, first: int = 0) -> list[Any]:
    """Return the cases of a sweep: each ``every``-th from ``first`` on is in the fast tier, the others in
    ``full``.
    """
    return [
        pytest.param(*case, marks=() if i % every == first else pytest.mark.full)
        for i, case in enumerate(case if isinstance(case, tuple) else (case,) for case in cases)
    ]


def instruction_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Learnable rows of very unequal length: the answer is the word said again, in capitals."""
    rows = []
    for i in range(count):
        words = [WORDS[(i * 7 + seed + j * 5) % len(WORDS)] for j in range(1 + (i * 13 + seed) % 9)]
        rows.append(
            {
                "instruction": f"Shout {i}: " + " ".join(words),
                "input": "",
                "output": " ".join(w.upper() for w in words),
            }
        )
    return rows


def preference_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Learnable pairs of very unequal length: the chosen answer says the words in capitals, the rejected
    one says others as they are.
    """
    rows: list[dict[str, object]] = []
    for i, row in enumerate(instruction_rows(count, seed)):
        words = [WORDS[(i * 5 + seed + j * 7) % len(WORDS)] for j in range(1 + (i * 11 + seed) % 7)]
        rows.append(
            {
                "prompt": row["instruction"],
                "chosen": row["output"],
                "rejected": " ".join(words),
                "margin": (i % 3) / 4,
            }
        )
    return rows


def labelled_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Learnable answers of very unequal length, labelled one by one: about two of three say the words in
    capitals and are good.
    """
    pairs = preference_rows(count, seed)
    return [
        {
            "prompt": row["prompt"],
            "completion": row["rejected" if i % 3 == 1 else "chosen"],
            "label": i % 3 != 1,
        }
        for i, row in enumerate(pairs)
    ]


@dataclass(frozen=True)
class Run:
    """A finished process with what it printed."""

    code: int
    out: str
    err: str


def worker_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, quiet and with one thread a process."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "PACELINE_"))
    }
    return {
        **clean,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PACELINE_LEDGER": "off",
        **(extra or {}),
    }


def run_process(
    argv: list[str], deadline: float, env: Mapping[str, str] | None, cwd: Path, lines: str | None = None
) -> Run:
    """A process in a session of its own, so that nothing of it outlives the test."""
    process = warm.Popen(
        argv,
        stdin=None if lines is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=worker_environment(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(lines, timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"did not finish within {deadline} s: {argv}\n{out[-3000:]}\n{err[-3000:]}")
    return Run(process.returncode, out, err)


def load_script(name: str) -> ModuleType:
    """A file of scripts/ as a module, which tests may ask."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their types up there
    spec.loader.exec_module(module)
    return module


def write_families(path: Path, table: Mapping[str, Any]) -> None:
    """The records of families (``paceline/plan/data/families.json``), one a line."""
    parts = []
    for key, value in table.items():
        rows = sorted(value.items()) if isinstance(value, dict) else []
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows)
        parts.append(f"{json.dumps(key)}: " + (f"{{\n{lines}\n}}" if rows else json.dumps(value)))
    path.write_text("{" + ", ".join(parts) + "}\n", encoding="utf-8")


def write_yaml(path: Path, config: Mapping[str, Any]) -> Path:
    """JSON is YAML."""
    path.write_text(json.dumps(config, indent=1))
    return path


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer of about 300 tokens with a chat template that marks the assistant's tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = CHAT_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    return folder


def write_teacher(folder: Path, tokenizer: Path) -> Path:
    """A small model of another width than those that are trained, with weights far from each other and the
    tokenizer's own tokens.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def write_classified(path: Path, rows: int) -> Path:
    """Texts whose last word tells which of three classes they have."""
    names, drawn = ("bad", "fair", "good"), random.Random(0)
    texts = [[drawn.choice(WORDS) for _ in range(drawn.randint(3, 12))] for _ in range(rows)]
    path.write_text(
        json.dumps(
            [
                {"text": " ".join([*words, WORDS[i % 3]]), "label": names[i % 3]}
                for i, words in enumerate(texts)
            ]
        )
    )
    return path


def write_retrieval(path: Path, rows: int) -> Path:
    """Queries with a document that says their words in another order, and up to two that do not."""
    drawn = random.Random(0)
    texts = [drawn.sample(WORDS, 4) for _ in range(rows)]
    others = [[" ".join(drawn.sample(WORDS, 3)) for _ in range(drawn.randrange(3))] for _ in range(rows)]
    path.write_text(
        json.dumps(
            [
                {"query": " ".join(words), "positive": " ".join(reversed(words)), "negatives": negatives}
                for words, negatives in zip(texts, others, strict=True)
            ]
        )
    )
    return path


def write_pairs(path: Path, rows: int, seed: int = 0) -> Path:
    """Preference pairs with margins."""
    path.write_text(json.dumps(preference_rows(rows, seed)))
    return path


def write_labelled(path: Path, rows: int, seed: int = 0) -> Path:
    """Labelled answers."""
    path.write_text(json.dumps(labelled_rows(rows, seed)))
    return path


def write_rows(path: Path, rows: int) -> Path:
    """Instruction rows in Alpaca's format."""
    path.write_text(json.dumps(instruction_rows(rows)))
    return path
