"""Paceline against TRL's GRPOTrainer and PPOTrainer, side by side: same model, prompts, lengths and
processes; completions a second over whole steps.

    python dev/benchmarks/rollouts_vs_trl.py --trl-python /path/to/trlvenv/bin/python [--trl-ppo
    /path/to/trl-1.10] [--rounds 3] [--steps 6] [--quick]

Prints a line a cell and writes ``result.json`` into ``--to``. Answers have all the same length on both sides:
TRL is told not to end before, and a model of random weights says its end token once in 32,000.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import workload
from measure import ROOT, Measured, environment, median, ranks_of, read_steps, run, torchrun

GOAL, MEMORY_GOAL = 2.0, 1.0
CELLS = ["grpo:float32:0.0", "ppo:float32:0.05"]  # with a KL TRL's GRPO wants its model from a folder


def main() -> None:
    """All cells, alternated."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--trl-python", required=True, help="the interpreter of an environment with trl==1.16.0"
    )
    parser.add_argument(
        "--trl-ppo",
        help=(
            "where trl==1.10.0 lies (pip install --target DIR --no-deps trl==1.10.0); PPO is left out without"
        ),
    )
    parser.add_argument("--to", type=Path, default=Path("outputs/benchmark-rollouts"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="rollouts a run, the first not counted")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--answers", type=int, default=16, help="a process and step")
    parser.add_argument("--cells", nargs="*", default=CELLS, metavar="ALGORITHM:DTYPE:KL")
    parser.add_argument("--quick", action="store_true", help="one round of two steps: does it run at all")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 2
    folder = options.to.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    workload.write_tokenizer(folder / "tokenizer")
    workload.write_rows(folder / "prompts.jsonl", workload.prompts(400, workload.PROMPT))
    report = []
    for cell in options.cells:
        algorithm, dtype, beta = cell.split(":")
        if algorithm == "ppo" and not options.trl_ppo:
            print(f"{cell}: left out, no --trl-ppo")
            continue
        ours, theirs = [], []
        for _ in range(options.rounds):
            theirs.append(trl(folder, algorithm, dtype, beta, options))
            ours.append(paceline(folder, algorithm, dtype, beta, options))
        speed = median([m.tokens_per_second for m in ours]), median([m.tokens_per_second for m in theirs])
        memory = median([m.peak_bytes for m in ours]), median([m.peak_bytes for m in theirs])
        found = {
            "cell": cell,
            "completions_per_second": [round(v, 2) for v in speed],
            "speed": round(speed[0] / speed[1], 2),
            "speed_goal": GOAL,
            "peak_gb": [round(v / 1e9, 2) for v in memory],
            "memory": round(memory[0] / memory[1], 2),
            "memory_goal": MEMORY_GOAL,
        }
        print(json.dumps(found), flush=True)
        report.append(
            found | {"runs": {"paceline": [vars(m) for m in ours], "trl": [vars(m) for m in theirs]}}
        )
        (folder / "result.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def trl(folder: Path, algorithm: str, dtype: str, beta: str, options: argparse.Namespace) -> Measured:
    """TRL once."""
    out = folder / "trl_result"
    side = "trl_ppo_side.py" if algorithm == "ppo" else "trl_rollout_side.py"
    arguments = [
        "--out",
        str(out),
        "--steps",
        str(options.steps),
        "--dtype",
        dtype,
        "--answers",
        str(options.answers),
        "--beta",
        beta,
    ]
    argv = [*torchrun(options.trl_python, options.nproc), str(ROOT / "dev" / "benchmarks" / side), *arguments]
    path = options.trl_ppo if algorithm == "ppo" else ""
    launched = run(argv, folder / f"trl-{algorithm}-{dtype}-{beta}.log", environment(PYTHONPATH=path))
    return ranks_of(out, options.nproc, launched)


def paceline(folder: Path, algorithm: str, dtype: str, beta: str, options: argparse.Namespace) -> Measured:
    """Paceline once, through ``paceline train``; what counts is the wall-clock time from step to step."""
    name = f"paceline-{algorithm}-{dtype}-{beta}"
    ppo = algorithm == "ppo"
    passes = workload.PPO_EPOCHS if ppo else 1
    reward = {"name": "length", "options": {"target": 100, "unit": "characters"}}
    if ppo:
        reward = {"name": "model", "options": {"model": str(reward_model(folder))}}
    config: dict[str, Any] = {
        "model": {"config": workload.LLAMA_ROLLOUT, "tokenizer": str(folder / "tokenizer")},
        "data": {"train": str(folder / "prompts.jsonl"), "max_length": workload.SEQ_LEN},
        "training": {
            "algorithm": algorithm,
            "mixed_precision": "bf16" if dtype == "bfloat16" else "no",
            "max_steps": options.steps * passes,
            "per_device_train_batch_size": options.answers,
            "gradient_accumulation_steps": 1,
            "learning_rate": 1e-5,
            "save_strategy": "no",
            "report_to": [],
            "logging_steps": 1,
            "use_cpu": True,
            "overwrite_output_dir": True,
            "output_dir": str(folder / name),
            "rollout": {
                "num_generations": 1 if ppo else workload.GROUP,
                "max_completion_length": workload.ANSWER,
                "temperature": 1.0,
                "rewards": [reward],
            },
            algorithm: {"kl_coef": float(beta), "num_ppo_epochs": passes} if ppo else {"beta": float(beta)},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(path), "--nproc", str(options.nproc)]
    launched = run(argv, folder / f"{name}.log", environment(PACELINE_CACHE=str(folder / "cache")))
    return read_steps(folder / name, launched, options.nproc, options.answers * options.nproc, passes)


def reward_model(folder: Path) -> Path:
    """A judge of random weights, of the policy's size."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = {k: v for k, v in workload.LLAMA_ROLLOUT.items() if k != "model_type"}
    place = folder / "reward-model"
    if not place.exists():
        LlamaForSequenceClassification(LlamaConfig(**config, pad_token_id=0, num_labels=1)).save_pretrained(
            place
        )
        workload.write_tokenizer(place)
    return place


if __name__ == "__main__":
    main()
