"""What ``paceline train`` costs to the first step, against the bare worker: CPU seconds of whole processes.

    python dev/benchmarks/first_step.py [--rounds 7] [--python PYTHON] [--folder /tmp]

One step of a small Llama on the rows of ``examples/data``, in one process. Two sides, in turn:

    train    paceline train CONFIG --nproc 1
    worker   python -m paceline.training.rank --plan PLAN, of the same run: what train starts in the end

each as a first start (no prepared data) and again over the same files. CPU seconds (user and system) of the
process and of all its children: medians of single runs, and of the ratios of runs side by side; the least
and the most beside them. Where PYTHONDONTWRITEBYTECODE is set, every process compiles its modules anew, which
users do not pay: the first line says which it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import ROOT, environment

GOAL = 1.15
SIDES, STARTS = ("train", "worker"), ("first", "again")
LLAMA = {
    "model_type": "llama",
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def write_config(folder: Path) -> Path:
    """The YAML of the run (JSON is YAML)."""
    config = {
        "model": {"config": LLAMA, "tokenizer": str(ROOT / "examples" / "tokenizer")},
        "data": {
            "train": str(ROOT / "examples" / "data" / "train.json"),
            "max_length": 256,
            "cache_dir": str(folder / "prepared"),
        },
        "training": {
            "output_dir": str(folder / "run"),
            "overwrite_output_dir": True,
            "max_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
        },
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def cpu_seconds(argv: Sequence[str], env: Mapping[str, str], log: Path) -> float:
    """Run a command to its end; return user + system seconds of it and of all children it has waited for."""
    with log.open("wb") as file:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(argv)}\nended with {child.returncode}:\n{log.read_text(encoding='utf-8')}")
    return usage.ru_utime + usage.ru_stime


def side_of(name: str, python: str, folder: Path, env: Mapping[str, str]) -> list[str]:
    """The command of a side, whose files have been written and whose modules are compiled."""
    folder.mkdir()
    config, plan, log = write_config(folder), folder / "plan.json", folder / "log"
    train = [python, "-m", "paceline.cli.main", "train", str(config), "--nproc", "1"]
    cpu_seconds(train, env, log)
    shutil.copy(folder / "run" / "plan.json", plan)
    worker = [python, "-m", "paceline.training.rank", "--plan", str(plan)]
    cpu_seconds(worker, env, log)
    return {"train": train, "worker": worker}[name]


def rounds_of(folder: Path, python: str, rounds: int) -> dict[tuple[str, str], list[float]]:
    """(``first`` or ``again``, side) → CPU seconds of each round; the sides begin in turn."""
    env = environment(PACELINE_CACHE=str(folder / "cache"), PACELINE_LEDGER=str(folder / "ledger.jsonl"))
    sides = {name: side_of(name, python, folder / name, env) for name in SIDES}
    seconds: dict[tuple[str, str], list[float]] = {(when, side): [] for when in STARTS for side in SIDES}
    for number in range(rounds):
        for side in SIDES:
            shutil.rmtree(folder / side / "prepared", ignore_errors=True)
        for when in STARTS:
            for side in SIDES[:: 1 if number % 2 else -1]:
                seconds[when, side].append(cpu_seconds(sides[side], env, folder / side / "log"))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    compiled = "not kept" if sys.dont_write_bytecode else "kept"
    print(f"load average {os.getloadavg()[0]:.1f}, bytecode {compiled}")
    with tempfile.TemporaryDirectory(prefix="first-step-", dir=options.folder) as folder:
        seconds = rounds_of(Path(folder), options.python, options.rounds)
    for (when, side), of_rounds in seconds.items():
        print(
            f"{when:6} {side:7} {statistics.median(of_rounds):6.2f} s"
            f" ({min(of_rounds):.2f} to {max(of_rounds):.2f})"
        )
    for when in STARTS:
        pairs = list(zip(seconds[when, "train"], seconds[when, "worker"], strict=True))
        ratios = [train / worker for train, worker in pairs]
        more = statistics.median(train - worker for train, worker in pairs)
        print(
            f"{when:6} {statistics.median(ratios):.3f} x the worker's ({min(ratios):.3f} to"
            f" {max(ratios):.3f}), {more:+.2f} s (goal: at most {GOAL})"
        )


if __name__ == "__main__":
    main()
