#!/usr/bin/env python
"""LLaMA-Factory 0.9.5 trains six steps and saves after three; its checkpoint goes on here, and the last three
losses are compared.

    LF_PYTHON=LF/bin/python python dev/research/llamafactory_resume.py

Environment, model, rows and replaced keys are those of ``llamafactory_equality.py``. KTO is left out: its KL
depends on the order of rows, which a run that goes on elsewhere draws anew (seen: 2e-3 apart).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from import_equality import TOLERANCE, run_ours, run_peer
from llamafactory_equality import REPLACED, write_adapter, write_model, write_rows

SAVED, STEPS = 3, 6
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
    stage = str(keys["stage"])
    write_model(folder)
    write_rows(folder)
    given = {**keys, **REPLACED, "max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVED}
    given |= {"model_name_or_path": str(folder / "model"), "output_dir": str(folder / "theirs")}
    given |= {"dataset": {"dpo": "pairs"}.get(stage, "rows"), "dataset_dir": str(folder)}
    if keys["finetuning_type"] == "lora":
        given["adapter_name_or_path"] = str(write_adapter(folder, keys, stage))
    (folder / "given.json").write_text(json.dumps(given))
    theirs = run_peer("llamafactory_losses.py", folder, "LF_PYTHON", DISABLE_VERSION_CHECK="1")
    source, made = folder / f"theirs/checkpoint-{SAVED}", folder / "converted"
    command = [sys.executable, "-m", "paceline", "checkpoints", "convert", str(source), "--to", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"convert ended with {done.returncode}:\n{done.stdout}{done.stderr[-3000:]}")
    return theirs[SAVED:], run_ours(folder, "", given, "llamafactory", "--resume", str(made))


def main() -> None:
    """Compare every case; exit with 1 if one differs by more than the tolerance."""
    worst: list[float] = []
    for title, keys in CASES.items():
        with tempfile.TemporaryDirectory(prefix="paceline-resume-") as name:
            theirs, ours = compare(Path(name), dict(keys))
        worst.append(max(abs(a - b) for a, b in zip(theirs, ours, strict=True)))
        print(f"{title}: LLaMA-Factory {theirs} Paceline {ours}: {worst[-1]:.1e}", flush=True)
    print(f"{sum(w <= TOLERANCE for w in worst)} of {len(worst)} within {TOLERANCE:g}")
    sys.exit(int(any(w > TOLERANCE for w in worst)))


if __name__ == "__main__":
    main()
