"""Windows of full-size models on the device beside what the roofline of an H100 says of them: time, MFU,
memory. Fewer layers where the whole does not fit one card; the roofline then counts as few.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpu_cases import MODEL
from gpu_check import Broken
from gpu_measured import planned_memory
from gpu_program import Programs, said, steps_of
from support import WORDS

ROOFLINE = Path(__file__).resolve().parents[1] / "unit" / "device" / "roofline.py"
STEPS, WARM = 10, 3
SECONDS = 180


@dataclass(frozen=True)
class FullSize:
    """One model as the catalogue names it: its layers that are trained, documents and their tokens."""

    model: str
    layers: int
    documents: int
    tokens: int

    @property
    def name(self) -> str:
        return f"window of {self.model}, {self.layers} layers"

    @property
    def roofline(self) -> str:
        """What ``roofline.py`` calls it."""
        return f"{self.model}:{self.layers}:{self.documents * self.tokens}:{self.documents}"


#: the roofline's own windows (``roofline.WINDOWS``); 80 GB hold so many layers with AdamW's states
WINDOWS = (
    FullSize("qwen2.5-0.5b", 24, 32, 512),
    FullSize("gemma-2-2b", 8, 1, 8192),
    FullSize("llama-3-8b", 6, 4, 4096),
)


def window(programs: Programs, tokenizer: str, device: str, size: FullSize) -> tuple[str, str]:
    """Train STEPS windows; the median of those after WARM, beside the roofline and the plan."""
    small = device == "cpu"
    tokens = 96 if small else size.tokens
    run = programs.folder / "".join(c if c.isalnum() else "-" for c in size.name)
    config = _config(programs, tokenizer, size, tokens, run, small)
    ended = programs.run(60, "plan", config, "--json", "--nproc", "1")
    if ended.code:
        raise Broken(f"paceline plan ended with {ended.code}: {said(ended)}")
    plan = json.loads(ended.out).get("forecast", {}).get("planned")
    ended = programs.run(SECONDS, "train", config, "--nproc", "1")
    if ended.code:
        raise Broken(f"exit code {ended.code}: {said(ended)}")
    steps = list(steps_of(run).values())[WARM:]
    milliseconds = 1e3 * tokens * size.documents
    took = milliseconds / median(s.tokens_per_second for s in steps)
    text = f"{size.documents} documents of {tokens}: {took:,.0f} ms"
    if not small:
        text += f", roofline {_roofline(programs, size):,.0f} ms"
    if plan:
        text += f", plan {milliseconds / plan['tokens_per_second_per_card']:,.0f} ms"
    if shares := [s.mfu for s in steps if s.mfu is not None]:
        text += f"; MFU {median(shares):.1%}"
    text += f"; peak {max(s.memory_bytes or 0 for s in steps) / 2**30:.2f} GiB"
    return "reported", text + (f", {planned_memory(plan)}" if plan else "")


def _roofline(programs: Programs, size: FullSize) -> float:
    """Milliseconds, counted on the emulated device in a process that sees no card."""
    process = programs.started(
        [sys.executable, str(ROOFLINE), "--json", size.roofline],
        stdout=-1,
        stderr=-1,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOFLINE.parents[3]), "CUDA_VISIBLE_DEVICES": ""},
    )
    out, err = process.communicate(timeout=120)
    if process.returncode:
        raise Broken(f"the roofline ended with {process.returncode}: {err[-300:]}")
    return float(json.loads(out.strip().splitlines()[-1])["milliseconds"])


def _config(programs: Programs, tokenizer: str, size: FullSize, tokens: int, run: Path, small: bool) -> str:
    rows = programs.folder / f"rows-{size.model}.json"
    texts = [
        " ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(tokens))
        for i in range(size.documents * STEPS)
    ]
    rows.write_text(json.dumps([{"instruction": f"Say {i}", "output": t} for i, t in enumerate(texts)]))
    return programs.yaml(
        run.name,
        {
            "model": {"config": _model(size, small), "tokenizer": tokenizer},
            "data": {"train": str(rows), "max_length": tokens, "cache_dir": str(rows.parent / "cache")},
            "training": {
                "distributed_strategy": "single",
                "mixed_precision": "no" if small else "bf16",
                "per_device_train_batch_size": size.documents,
                "max_steps": STEPS,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "output_dir": str(run),
                **({"use_cpu": True} if small else {}),
            },
        },
    )


def _model(size: FullSize, small: bool) -> Mapping[str, Any]:
    if small:
        return MODEL
    from paceline.plan.model.model_catalogue import named_config

    return {**named_config(size.model), "num_hidden_layers": size.layers}
