#!/usr/bin/env python
"""Three steps' losses of TRL and of the imported config, side by side.

    pip download --no-deps -d W trl==1.16.0 && unzip -q W/trl-*.whl -d SITE
    TRL_SITE=SITE python dev/research/import_equality.py [FILE ...]

One written table replaces model, data, precision and device in both (``REPLACED``), and nothing else. Both
start from the same small model, and every optimizer step takes all rows, so that the order of rows does not
count. Without FILE: the keys in ``SMALL``. Adapters are drawn anew by each, so LoRA is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4
ROWS = 8
#: Keys that both runs take from here: fp32 on the CPU, three steps of all rows
REPLACED = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": ROWS // 4,
    "max_steps": 3,
    "bf16": False,
    "fp16": False,
    "use_cpu": True,
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_strategy": "no",
    "lora_dropout": 0.0,
    "attn_implementation": "eager",
    "dataset_num_proc": 1,
    "dtype": "float32",
    "gradient_checkpointing": False,
    "push_to_hub": False,
    "max_length": 128,
    "use_peft": False,
    "load_in_4bit": False,
}
DROPPED = (
    "torch_dtype",
    "max_seq_length",
    "model_revision",
    "dataset_config",
    "dataset_mixture",
    "dataset_mixer",
    "hub_model_id",
    "hub_strategy",
    "chat_template",
    "eos_token",
    "tokenizer_name",
    "num_train_epochs",
    "evaluation_strategy",
    "use_liger_kernel",
)
#: name → (trainer, its own keys)
SMALL = {
    "sft": ("sft", {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 1}),
    "sft defaults": ("sft", {}),
    "sft assistant": ("sft", {"learning_rate": 1e-3, "assistant_only_loss": True, "weight_decay": 0.1}),
    "sft dft": ("sft", {"learning_rate": 1e-3, "loss_type": "dft"}),
    "sft packed": ("sft", {"learning_rate": 1e-3, "packing": True, "packing_strategy": "bfd"}),
    "dpo": ("dpo", {"learning_rate": 1e-3}),
    "dpo hinge": ("dpo", {"learning_rate": 1e-3, "loss_type": ["hinge"], "beta": 0.3}),
    "dpo ipo": ("dpo", {"learning_rate": 1e-3, "loss_type": ["ipo"], "max_grad_norm": 0.1}),
    "dpo smoothed": ("dpo", {"learning_rate": 1e-3, "label_smoothing": 0.2, "adam_beta2": 0.95}),
    "dpo and sft": (
        "dpo",
        {"learning_rate": 1e-3, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    ),
    "reward": ("reward", {"learning_rate": 1e-3, "center_rewards_coefficient": 0.01}),
}


def main() -> None:
    """Compare every file; exit with 1 if one differs by more than the tolerance."""
    worst: list[float] = []
    with tempfile.TemporaryDirectory(prefix="paceline-equality-") as name:
        folder = Path(name)
        prepare(folder)
        cases = [(Path(file).name, None, _read(file)) for file in sys.argv[1:]]
        cases = cases or [(title, trainer, dict(keys)) for title, (trainer, keys) in SMALL.items()]
        for title, trainer, keys in cases:
            theirs, ours = compare(folder, trainer, keys)
            worst.append(max(abs(a - b) for a, b in zip(theirs, ours, strict=True)))
            print(f"{title}: TRL {theirs} Paceline {ours}: {worst[-1]:.1e}", flush=True)
    print(f"{sum(w <= TOLERANCE for w in worst)} of {len(worst)} within {TOLERANCE:g}")
    sys.exit(int(any(w > TOLERANCE for w in worst)))


def _read(file: str) -> dict[str, object]:
    from paceline.config.import_export.import_config import read_foreign

    return dict(read_foreign(file)[0])


def compare(folder: Path, trainer: str | None, keys: dict[str, object]) -> tuple[list[float], list[float]]:
    """Return TRL's and our losses of three steps."""
    from paceline.config.import_export.programs.trl import algorithm_of

    chosen = trainer or algorithm_of(keys)  # type: ignore[arg-type]
    given = {key: value for key, value in keys.items() if key not in DROPPED} | REPLACED
    given |= {"model_name_or_path": str(folder / "model"), "output_dir": str(folder / "trl")}
    given["dataset_name"] = str(folder / ("rows.jsonl" if chosen == "sft" else "pairs.jsonl"))
    if chosen == "grpo":
        raise SystemExit("rollouts draw their own answers; their losses cannot be compared this way")
    return run_trl(folder, chosen, given), run_ours(folder, chosen, given)


def prepare(folder: Path) -> None:
    """Write a small model with a tokenizer and template, and rows of unequal length."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    from support import TINY_LLAMA, instruction_rows, preference_rows, write_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2)).save_pretrained(folder / "model")
    write_tokenizer(folder / "model")
    talks = [
        [_turn("user", row["instruction"]), _turn("assistant", row["output"])]
        for row in instruction_rows(ROWS)
    ]
    _lines(folder / "rows.jsonl", [{"messages": talk} for talk in talks])
    pairs = [
        {
            name: [_turn("user", str(row["prompt"])), _turn("assistant", str(row[name]))]
            for name in ("chosen", "rejected")
        }
        for row in preference_rows(ROWS)
    ]
    _lines(folder / "pairs.jsonl", pairs)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _lines(path: Path, rows: list[dict[str, object]] | list[dict[str, list[dict[str, str]]]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_trl(folder: Path, trainer: str, given: dict[str, object]) -> list[float]:
    """Run TRL in a process of its own and return its logged losses."""
    (folder / "given.json").write_text(json.dumps(given))
    command = [sys.executable, str(ROOT / "dev" / "research" / "trl_losses.py"), trainer, str(folder)]
    site = os.environ.get("TRL_SITE", "")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"TRL ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return [float(loss) for loss in json.loads(done.stdout.strip().splitlines()[-1])]


def run_peer(script: str, folder: Path, variable: str, **more: str) -> list[float]:
    """Run ``script`` on ``folder`` by the interpreter that ``variable`` names; return its losses."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
    environment.pop("PYTHONPATH", None)
    command = [os.environ.get(variable, sys.executable), str(ROOT / "dev" / "research" / script), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{script} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return [float(loss) for loss in json.loads(done.stdout.strip().splitlines()[-1])]


def run_ours(
    folder: Path, trainer: str, given: dict[str, object], system: str = "trl", *more: str
) -> list[float]:
    """Import the same keys of ``system``, run them (with ``more`` words) and return the events' losses."""
    from paceline.config.import_export.import_config import import_data
    from paceline.config.import_export.write_yaml import accepted
    from paceline.core.rundir import RunDir
    from paceline.runlog.events import Step, read_events

    lines = {key: number for number, key in enumerate(given, 1)}
    made, problems = accepted(import_data(dict(given), lines, "given", system, trainer or None), "equality")  # type: ignore[arg-type]
    if problems:
        raise SystemExit("\n".join(problem.render() for problem in problems))
    file, run = folder / "ours.yaml", folder / f"run-{len(list(folder.iterdir()))}"
    file.write_text(made.text)
    command = [
        sys.executable,
        "-m",
        "paceline.cli.main",
        "train",
        str(file),
        f"training.output_dir={run}",
        "--nproc",
        "1",
        *more,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PACELINE_CACHE": str(folder / "cache"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"paceline ended with {done.returncode}:\n{done.stderr[-3000:]}")
    events = [record.event for record in read_events(RunDir.at(run).events(0))]
    return [event.loss for event in events if isinstance(event, Step)]


if __name__ == "__main__":
    main()
