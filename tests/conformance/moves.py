"""Moves: a run that one layout began and saved goes on under another, as if nothing had happened.

The first layout trains to the end and saves after SAVED steps; the other resumes there, on its own number of
processes, saves what it has restored before its first step, and goes on: the NEXT losses are compared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cells import CPU, VARIANTS, Cell, Variant, fsdp_variant, zero_cell
from check import Checker, Failure, different_tensors
from pool import HERE

from paceline.core.rundir import RunDir
from paceline.runlog.history import load_history

ROWS = 12  # a step: 1, 2, 3, 4 and 6 ranks share them evenly
SAVED, NEXT = 5, 3
LOSS = {"fp32": 2e-6, "fp64": 1e-12}

_NAMED = {v.name: v for v in VARIANTS}
# One of every strategy, on 1, 2, 3, 4 and 8 processes: every pair of these is a move.
LAYOUTS = (
    *(_NAMED[name] for name in ("single", "data_parallel (one device)", "ddp", "zero_redundancy")),
    replace(fsdp_variant("fsdp full_shard", 3, fsdp="full_shard")),
    _NAMED["fsdp hybrid_shard (2 × 2)"],
    _NAMED["tp"],
    _NAMED["cp all-gather"],
    _NAMED["pipeline interleaved"],
    _NAMED["pp × tp × fsdp"],
    _NAMED["ZeRO-1"],
    replace(_NAMED["ZeRO-3"], nproc=4, data_parallel=4),
    _NAMED["ZeRO-3, CPU offload"],
    _NAMED["AutoTP + ZeRO-1"],
)
# Layouts that cut the state as one of those does: from one process to each, and back.
OTHERS = (
    *(
        _NAMED[name]
        for name in (
            "fsdp shard_grad_op",
            "fsdp no_shard",
            "fsdp full_shard, CPU offload",
            "tp, sequence parallel",
            "cp ulysses",
            "pipeline 1f1b",
            "pipeline zero_bubble",
            "tp × fsdp",
            "pp × fsdp",
            "ZeRO-2",
            "ZeRO-3, NVMe offload",
            "DeepSpeed Ulysses",
        )
    ),
    zero_cell("ZeRO-1, CPU offload", 1, zero={"offload_optimizer": CPU}),
    zero_cell("ZeRO-2, CPU offload", 2, zero={"offload_optimizer": CPU}),
)


NATIVE = tuple(v for v in LAYOUTS if v.native and v.name != "data_parallel (one device)")
_BY_LABEL = {v.name: v for v in (*LAYOUTS, *OTHERS)}
_ADAPT = ("single", "ddp", "zero_redundancy", "fsdp full_shard", "fsdp hybrid_shard (2 × 2)")
_ADAPT_ALSO = ("ZeRO-1", "ZeRO-2", "ZeRO-3", "ZeRO-3, CPU offload")
_QUANTISED = ("single", "ddp", "fsdp full_shard", "ZeRO-2")
# Three engines whose state differs most, and back to one process.
_LEARN = ("single", "ZeRO-3", "fsdp full_shard", "single")
# every model and state that an algorithm has: a value model and adaptive KL (ppo), half a rollout
_ALGORITHMS = (
    *("reward", "dpo", "kto", "orpo", "simpo", "cpo", "grpo", "ppo", "rloo", "reinforce_plus_plus"),
    *("distillation", "classification", "embedding"),
)


@dataclass(frozen=True)
class Move:
    """``path``: the first layout, and those that the run goes on in, one after the other."""

    path: tuple[Variant, ...]
    finetuning: str = "full"
    precision: str = "fp32"
    algorithm: str = "sft"

    @property
    def name(self) -> str:
        what = f"{self.algorithm} · {self.finetuning} · {self.precision}"
        return f"{what} · {' → '.join(map(label, self.path))}"

    @property
    def steps(self) -> int:
        """Of the whole run: a chain takes one in each layout."""
        return SAVED + max(NEXT, len(self.path) - 1)

    def cells(self) -> list[Cell]:
        return [Cell(variant, self.finetuning, self.precision, self.algorithm) for variant in self.path]


def label(variant: Variant) -> str:
    return f"{variant.name}, {variant.nproc} rank{'s' * (variant.nproc > 1)}"


def pairs() -> list[Move]:
    """Every pair of layouts; each layout's next neighbours first, so that a part of it holds all of them."""
    size = len(LAYOUTS)
    return [Move((LAYOUTS[i], LAYOUTS[(i + shift) % size])) for shift in range(1, size) for i in range(size)]


def others() -> list[Move]:
    """From one process to every other layout, and back."""
    return [Move(path) for v in OTHERS for path in ((LAYOUTS[0], v), (v, LAYOUTS[0]))]


def exact() -> list[Move]:
    """Native layouts in float64: every one as first and as second, twice."""
    size = len(NATIVE)
    return [
        Move((NATIVE[i], NATIVE[(i + shift) % size]), precision="fp64")
        for shift in (1, size // 2)
        for i in range(size)
    ]


def adapters() -> list[Move]:
    """LoRA and QLoRA, in a ring of the layouts that train them."""
    return [
        *_ring((*_ADAPT, *_ADAPT_ALSO), "LoRA"),
        *_ring(_QUANTISED, "QLoRA"),
    ]


def _ring(names: Sequence[str], finetuning: str) -> list[Move]:
    layouts = [_BY_LABEL[name] for name in names]
    return [Move((a, b), finetuning) for a, b in zip(layouts, [*layouts[1:], layouts[0]], strict=True)]


def learnt() -> list[Move]:
    """Every algorithm's models and state."""
    return [
        Move((_BY_LABEL[a], _BY_LABEL[b]), finetuning="full", algorithm=algorithm)
        for algorithm in _ALGORITHMS
        for a, b in zip(_LEARN, _LEARN[1:], strict=False)
    ]


def chains() -> list[Move]:
    """Four moves, a step in each, and back."""
    paths = (
        ("single", "ZeRO-3", "fsdp full_shard", "tp", "ddp", "single"),
        (
            "fsdp hybrid_shard (2 × 2)",
            "pipeline interleaved",
            "ZeRO-1",
            "cp all-gather",
            "AutoTP + ZeRO-1",
            "fsdp hybrid_shard (2 × 2)",
        ),
    )
    native = ("ddp", "fsdp full_shard", "pipeline interleaved", "tp", "zero_redundancy", "ddp")
    return [
        *(Move(tuple(_BY_LABEL[name] for name in path)) for path in paths),
        Move(tuple(_BY_LABEL[name] for name in native), precision="fp64"),
    ]


PARTS = {
    "pairs": pairs,
    "others": others,
    "exact": exact,
    "adapters": adapters,
    "learnt": learnt,
    "chains": chains,
}


@dataclass(frozen=True)
class Moved:
    """``works``, ``refused`` (before the start), or ``fails``; the largest difference of a loss."""

    result: str
    reason: str = ""
    loss: float = 0.0


class Mover(Checker):
    """Runs moves; what a layout has trained alone is kept."""

    program = HERE / "moved_rank.py"

    def __init__(self, folder: Path, tokenizer: Path, data: Mapping[str, Path]) -> None:
        super().__init__(folder, tokenizer, data)
        self._refused: dict[str, str] = {}

    def run_dir(self, cell: Cell) -> RunDir:
        name = "".join(c if c.isalnum() else "-" for c in f"{cell.name}-{cell.variant.nproc}")
        return RunDir.at(self.folder / name)

    def move(self, move: Move) -> Moved:
        """Everything about one move."""
        cells = move.cells()
        for cell in cells:
            if refusal := self.refused(cell):
                return Moved("refused", f"{label(cell.variant)}: {refusal}")
        count = NEXT if len(cells) == 2 else 1
        try:
            whole = before = self.whole(cells[0], move.steps)
            gaps = []
            for number, cell in enumerate(cells[1:]):
                gap, before = self.go_on(whole, before, cell, SAVED + number, move.steps, count)
                gaps.append(gap)
        except Failure as failure:
            return Moved("fails", str(failure)[-3000:])
        return Moved("works", "", max(gaps))

    def refused(self, cell: Cell) -> str:
        """Asked once a layout: the look at a config costs more than a move."""
        if cell.name not in self._refused:
            self._refused[cell.name] = super().refused(cell)
        return self._refused[cell.name]

    def whole(self, cell: Cell, steps: int) -> RunDir:
        """The run of a layout from beginning to end."""
        run = RunDir.at(f"{self.run_dir(cell).root}-{steps}")
        if not run.result_json.exists():
            self.train(cell, run, **keys(cell.variant, steps))
        return run

    def go_on(
        self, whole: RunDir, before: RunDir, cell: Cell, step: int, steps: int, count: int
    ) -> tuple[float, RunDir]:
        """The run ``before`` goes on after ``step`` in ``cell``; its next ``count`` losses are held to the
        ``whole`` run's. Returns the largest difference of a loss, and the new run.
        """
        after = RunDir.at(self.folder / f"{before.root.name[:100]}-{step}-to-{self.run_dir(cell).root.name}")
        shutil.rmtree(after.root, ignore_errors=True)
        checkpoint = before.checkpoint(step)
        changed = {"save_steps": step + count, "resume_from_checkpoint": str(checkpoint)}
        self.train(cell, after, **keys(cell.variant, steps), **changed)
        check_state(checkpoint, after.checkpoint(step))
        gap = check_steps(whole, after, range(step + 1, step + count + 1))
        if not gap <= LOSS[cell.precision]:
            raise Failure(f"the next losses differ by up to {gap:.3g}")
        return gap, after


def keys(variant: Variant, steps: int) -> dict[str, Any]:
    """Keys of ``training`` with ROWS rows a step."""
    rows = ROWS // variant.data_parallel
    accumulation = 1 if rows % 2 else 2
    return {
        "per_device_train_batch_size": rows // accumulation,
        "gradient_accumulation_steps": accumulation,
        "max_steps": steps,
        "warmup_steps": 2,
    }


def check_state(saved: Path, restored: Path) -> None:
    """Masters, moments and all else that is stored, bit for bit; position, order and the algorithm's own."""
    different = [str(name) for name in different_tensors(saved, restored)]
    if different:
        raise Failure(f"{len(different)} restored tensors differ, first {different[:3]}")
    one, other = (json.loads((folder / "state.json").read_text()) for folder in (saved, restored))
    for part in ("train", "windows", "algorithm", "data_fingerprint", "global_batch", "seed"):
        if one[part] != other[part]:
            raise Failure(f"'{part}' of the state: {one[part]} was saved, {other[part]} restored")


def check_steps(whole: RunDir, after: RunDir, steps: range) -> float:
    """The same rows and rates; returns the largest difference of a loss."""
    one, other = load_history(whole).steps, load_history(after).steps
    for step in steps:
        if step not in other:
            raise Failure(f"no step {step}")
        a, b = one[step], other[step]
        if (a.sample_digest, a.lr) != (b.sample_digest, b.lr):
            raise Failure(f"step {step} has other rows or another rate: {b.lr}, before {a.lr}")
    return max(abs(one[step].loss - other[step].loss) for step in steps)
