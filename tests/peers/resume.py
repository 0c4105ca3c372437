#!/usr/bin/env python
"""LLaMA-Factory trains six steps and saves after three; its checkpoint goes on here.

The last three losses are compared:

    PACELINE_PEERS=/opt/envs python tests/peers/resume.py

KTO is left out: its KL depends on the order of rows, which a run that goes on elsewhere draws anew.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import of_llamafactory
import ours
from ask import ask
from small import write_model

SAVED, STEPS, TOLERANCE = 3, 6, 1e-4
_FULL = {"finetuning_type": "full", "template": "qwen", "learning_rate": 1e-3, "do_train": True}
_LORA = {**_FULL, "finetuning_type": "lora", "lora_target": "all"}
#: name → its own keys
CASES: dict[str, dict[str, object]] = {
    "sft": {"stage": "sft", **_FULL, "lr_scheduler_type": "cosine", "weight_decay": 0.1, "warmup_steps": 2},
    "sft, an adapter": {"stage": "sft", **_LORA, "lr_scheduler_type": "linear"},
    "dpo": {"stage": "dpo", **_FULL},
}


def compare(folder: Path, keys: dict[str, object]) -> tuple[list[float], list[float]]:
    """Return LLaMA-Factory's losses and ours after the checkpoint."""
    write_model(folder)
    saves = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVED}
    given = {**of_llamafactory.small(folder, keys), **saves}
    theirs = ask("llamafactory", "losses", [given], folder)[0]
    source, made = folder / f"theirs/checkpoint-{SAVED}", folder / "converted"
    command = [sys.executable, "-m", "paceline", "checkpoints", "convert", str(source), "--to", str(made)]
    subprocess.run(command, check=True)
    mine = ours.losses(ours.imported("llamafactory", given), folder, "--resume", str(made))
    return theirs[SAVED:], mine


def main() -> None:
    """Compare every case; exit with 1 if one differs by more than the tolerance."""
    worst: list[float] = []
    for title, keys in CASES.items():
        with tempfile.TemporaryDirectory(prefix="paceline-resume-") as name:
            theirs, mine = compare(Path(name), dict(keys))
        worst.append(max(abs(a - b) for a, b in zip(theirs, mine, strict=True)))
        print(f"{title}: LLaMA-Factory {theirs} Paceline {mine}: {worst[-1]:.1e}", flush=True)
    print(f"{sum(w <= TOLERANCE for w in worst)} of {len(worst)} within {TOLERANCE:g}")
    sys.exit(int(any(w > TOLERANCE for w in worst)))


if __name__ == "__main__":
    main()
