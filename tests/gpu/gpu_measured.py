"""What only a device can tell beside losses: the plan's memory and speed beside the measured, and how soon a
killed rank is named.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from gpu_cases import MODEL
from gpu_check import Broken, Finding
from gpu_program import TIMED_OUT, Programs, said, steps_of
from support import WORDS

BILLION: dict[str, Any] = {  # the sizes of Llama-3.2-1B
    **MODEL,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
ROW, ROWS_AT_MOST, STEPS = 2048, 64, 6
MEASURED_SECONDS, NAMED_SECONDS = 300, 10
#: share of the card that the plan's peak may miss the measured one by, at 90 % of the card
MISSED = 0.10


def timed(name: str, group: str, measure: Callable[[], tuple[str, str]]) -> Finding:
    """A measurement as a finding: what it gives, or why it failed."""
    started = time.monotonic()
    try:
        result, text = measure()
    except Exception as error:  # the others go on
        result, text = "fails", str(error) if isinstance(error, Broken) else repr(error)
    return Finding(name, group, result, text, time.monotonic() - started)


class Filled:
    """A 1 B model, its micro-batch so large that the plan's peak is ``share`` of the card."""

    def __init__(self, programs: Programs, tokenizer: str, device: str, card_bytes: int | None) -> None:
        """``card_bytes`` None: a small model in one size, for a try of the script on a CPU."""
        self.programs, self.device, self.card, self.tokenizer = programs, device, card_bytes, tokenizer
        self.model = BILLION if card_bytes else MODEL
        self.row = ROW if card_bytes else 96
        self.rows = programs.folder / "long.json"
        text = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(self.row)) for i in range(400)]
        self.rows.write_text(
            json.dumps([{"instruction": f"Say {i}", "output": t} for i, t in enumerate(text)])
        )

    def memory(self) -> tuple[str, str]:
        """The plan's peak beside the measured one at 90 % of the card."""
        rows, lora, plan = self.fit_rows(0.9)
        steps = self._train(f"memory-{rows}", rows, lora)
        measured = max(s.memory_bytes or 0 for s in steps.values())
        text = f"{planned_memory(plan)}, measured {measured / 2**30:.2f} GiB" + self._of(rows, lora)
        if self.card is None:
            return "reported", text
        return ("holds" if abs(tensor_bytes(plan) - measured) <= MISSED * self.card else "fails"), text

    def speed(self) -> tuple[str, str]:
        """Tokens a second and MFU beside the plan's, at half of the card."""
        rows, lora, plan = self.fit_rows(0.5)
        steps = list(self._train(f"speed-{rows}", rows, lora).values())[2:]  # the first ones warm up
        speed = median(s.tokens_per_second for s in steps)
        shares = [share for s in steps if (share := s.mfu if s.mfu is not None else s.of_product) is not None]
        planned = f"{plan['tokens_per_second_per_card']:,.0f} tokens/s, MFU {plan['mfu']:.1%}"
        found = f"{speed:,.0f} tokens/s" + (f", MFU {median(shares):.1%}" if shares else "")
        return "reported", f"plan {planned}; measured {found}" + self._of(rows, lora)

    def _of(self, rows: int, lora: bool) -> str:
        return f" ({rows} rows of {self.row} tokens a micro-batch{', LoRA' if lora else ''})"

    def fit_rows(self, share: float) -> tuple[int, bool, Mapping[str, Any]]:
        """Rows a micro-batch, whether LoRA was needed, and the plan's forecast."""
        if self.card is None:
            return 2, False, self.planned_rows(2, False)
        for lora in (False, True):
            one, two = (self.planned_rows(rows, lora)["memory_bytes"] for rows in (1, 2))
            rows = min(int((share * self.card - one) / (two - one)) + 1, ROWS_AT_MOST)
            if rows >= 1 and one <= share * self.card:
                return rows, lora, self.planned_rows(rows, lora)
        raise Broken(
            f"a 1 B model does not fit {share:.0%} of {self.card / 2**30:.0f} GiB, with LoRA neither"
        )

    def planned_rows(self, rows: int, lora: bool) -> Mapping[str, Any]:
        config = self._config(f"plan-{rows}", rows, lora)
        ended = self.programs.run(120, "plan", config, "--json", "--nproc", "1")
        if ended.code:
            raise Broken(f"paceline plan ended with {ended.code}: {said(ended)}")
        planned = json.loads(ended.out).get("forecast", {}).get("planned")
        if planned is None:
            raise Broken("paceline plan --json predicts nothing for this config")
        return dict(planned)

    def _train(self, name: str, rows: int, lora: bool) -> Mapping[int, Any]:
        config = self._config(name, rows, lora)
        ended = self.programs.run(MEASURED_SECONDS, "train", config, "--nproc", "1")
        if ended.code:
            raise Broken(f"exit code {ended.code}{self._of(rows, lora)}: {said(ended)}")
        return steps_of(self.programs.folder / name)

    def _config(self, name: str, rows: int, lora: bool) -> str:
        return self.programs.yaml(
            name,
            {
                "model": {"config": self.model, "tokenizer": self.tokenizer},
                "data": {
                    "train": str(self.rows),
                    "max_length": self.row,
                    "cache_dir": str(self.rows.parent / "cache"),
                },
                **({"lora": {"r": 16}} if lora else {}),
                "training": {
                    "distributed_strategy": "single",
                    "mixed_precision": "auto",
                    "per_device_train_batch_size": rows,
                    "max_steps": STEPS,
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "report_to": "none",
                    "output_dir": str(self.programs.folder / name),
                    **({"use_cpu": True} if self.device == "cpu" else {}),
                },
            },
        )


def tensor_bytes(plan: Mapping[str, Any]) -> int:
    """What the plan's peak holds in tensors: torch counts neither the driver's context nor what its allocator
    holds in fragments.
    """
    terms: Mapping[str, int] = plan["memory_terms"]
    return int(plan["memory_bytes"]) - terms["fragments"] - terms["overhead"]


def planned_memory(plan: Mapping[str, Any]) -> str:
    """The plan's peak in words."""
    whole, tensors = plan["memory_bytes"] / 2**30, tensor_bytes(plan) / 2**30
    return f"plan {tensors:.2f} GiB of tensors ({whole:.2f} with context and fragments)"


def killed_rank(programs: Programs, config: Mapping[str, Any]) -> tuple[str, str]:
    """SIGKILL to rank 1 of two in a step: the run ends and names it within NAMED_SECONDS."""
    run = programs.folder / "killed"
    training = {**config["training"], "max_steps": 100_000, "save_strategy": "no", "output_dir": str(run)}
    process = programs.popen(
        "train", programs.yaml("killed", {**config, "training": training}), "--nproc", "2"
    )
    try:
        _await_step(process, run, 3)
        os.kill(_pid_of(process.pid, 1), signal.SIGKILL)
        started = time.monotonic()
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - started
    except Exception:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if "rank 1 was ended by SIGKILL" not in err:
        raise Broken(f"rank 1 is not named: {err[-300:]}")
    return ("holds" if seconds <= NAMED_SECONDS else "fails"), f"rank 1 named after {seconds:.1f} s"


def _await_step(process: Any, run: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while max(steps_of(run), default=0) < step:
        if process.poll() is not None:
            raise Broken(
                f"ended with {process.returncode} before step {step}: {process.stderr.read()[-300:]}"
            )
        if time.monotonic() > deadline:
            raise Broken(f"step {step} was not reached in 120 s (as exit code {TIMED_OUT})")
        time.sleep(0.2)


def _pid_of(parent: int, rank: int) -> int:
    """The child of ``parent`` that is this rank."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            above = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            mine = above == parent and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(
                b"\0"
            )
        except OSError:
            continue
        if mine:
            return int(entry.name)
    raise Broken(f"no process of rank {rank} was found")
