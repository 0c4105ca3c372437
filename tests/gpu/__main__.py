"""``make gpu-check``: this machine's GPU held to the CPU's losses; writes docs/reference/gpu_support.md.

    python tests/gpu [--only TEXT] [--device cuda|cpu] [--jobs N] [--keep-going] [--to FILE] [--keep DIR]

Two processes a case where there are two devices. ``--device cpu`` tries the script itself against the CPU; it
writes a page only with ``--to``, and the page says that no GPU was used. Exit code 0: no case fails; 1: one
does; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from gpu_cases import CASES, DeviceCase  # noqa: E402
from gpu_check import DeviceChecker, Finding, summary  # noqa: E402
from gpu_measured import Filled, killed_rank, timed  # noqa: E402
from gpu_page import PAGE, page  # noqa: E402
from gpu_program import Programs  # noqa: E402
from gpu_suite import suite  # noqa: E402
from gpu_windows import WINDOWS, window  # noqa: E402

MOST_AT_A_TIME = 12  # each holds a context of the card
SUITE = "tests of the emulated device"
MEASUREMENTS = ("memory at 90 % of the card", "speed of a 1 B model", "killed rank")


def main(argv: Sequence[str] | None = None, started: Callable[..., Any] = subprocess.Popen) -> int:
    """Run the chosen cases and write the page. ``started``: what starts processes."""
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds the text")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int, default=at_a_time(os.cpu_count()), help="cases at a time")
    parser.add_argument("--to", type=Path, help="the page [default: docs/reference/gpu_support.md]")
    parser.add_argument("--keep-going", action="store_true", help="also where the first case fails")
    parser.add_argument("--keep", type=Path, help="leave the runs there")
    given = parser.parse_args(argv)
    count, card = devices(given.device)
    if count == 0:
        print(
            f"gpu-check: torch {version('torch')} sees no GPU on this machine, so nothing was run.",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        findings = check_all(
            Programs(folder.absolute(), started),
            given.device,
            count,
            card,
            given.only,
            given.jobs,
            given.keep_going,
        )
    if not findings:
        print(f"gpu-check: no case's name holds {given.only!r}", file=sys.stderr)
        return 2
    written = "; no page was written"
    target = given.to or (PAGE if given.device == "cuda" and not given.only else None)
    if target is not None and not stops(findings, given.keep_going):
        text = page(machine(given.device, count), [f.to_json() for f in findings.values()])
        target.write_text(text, encoding="utf-8")
        written = f"; written to {target}"
    print(summary(findings) + written)
    return 1 if any(f.result == "fails" for f in findings.values()) else 0


def at_a_time(processors: int | None) -> int:
    """Cases side by side: most of their time is a processor's (imports, the CPU's own training)."""
    return min(max((processors or 1) * 3 // 4, 1), MOST_AT_A_TIME)


def check_all(
    programs: Programs, device: str, count: int, card: int | None, only: str, jobs: int, keep_going: bool
) -> dict[str, Finding]:
    """Cases side by side, then what is measured, each alone; findings by name."""
    cases = [case for case in CASES if only in case.name and case.processes <= count]
    checker = DeviceChecker(programs, device)
    findings: dict[str, Finding] = {}

    def tell(found: Finding) -> None:
        findings[found.name] = found
        print(f"{found.result:<9}{found.seconds:5.0f} s  {found.name}: {found.text}", flush=True)

    for case in cases[:1]:  # alone: where nothing can run, minutes of all the others would tell no more
        tell(checker.check(case))
    if stops(findings, keep_going):
        print("gpu-check: the first case fails, so the others were not begun (--keep-going runs them)")
        return findings
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        for found in pool.map(checker.check, cases[1:]):
            tell(found)
    if device != "cpu" and only in SUITE:
        tell(timed(SUITE, "one process", lambda: suite(programs.started)))
    filled = Filled(programs, checker.folders["tokenizer"], device, card)
    two: DeviceCase = next(case for case in CASES if case.name == "ddp")
    killed = two.config(checker.folders, "", device)
    measured = (filled.memory, filled.speed, lambda: killed_rank(programs, killed))
    for name, measure in zip(MEASUREMENTS, measured, strict=True):
        if only in name and (count > 1 or name != MEASUREMENTS[-1]):
            tell(timed(name, "measured", measure))
    for size in WINDOWS:
        if only in size.name:
            tell(
                timed(
                    size.name,
                    "measured",
                    partial(window, programs, checker.folders["tokenizer"], device, size),
                )
            )
    return findings


def stops(findings: Mapping[str, Finding], keep_going: bool) -> bool:
    """Whether the first case alone was tried, and fails."""
    return len(findings) == 1 and not keep_going and all(f.result == "fails" for f in findings.values())


def devices(kind: str) -> tuple[int, int | None]:
    """How many there are, and the memory of the first in bytes; a CPU has two processes and no card."""
    if kind == "cpu":
        return 2, None
    import torch

    if not torch.cuda.is_available():
        return 0, None
    return torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory


def machine(kind: str, count: int) -> dict[str, str]:
    """Device, driver and versions."""
    import torch

    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
    }
    if kind == "cpu":
        facts["device"] = "the CPU: a try of the script, no GPU was used"
    else:
        card = torch.cuda.get_device_properties(0)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        facts["device"] = f"{count} × {card.name}, {memory}, capability {card.major}.{card.minor}"
        facts["driver"] = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        facts["CUDA, NCCL"] = f"{torch.version.cuda}, {'.'.join(map(str, torch.cuda.nccl.version()))}"
    facts["versions"] = ", ".join(
        _versions("torch", "transformers", "triton", "deepspeed", "peft", "bitsandbytes")
    )
    return facts


def _versions(*names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return found


def _output(*argv: str) -> str:
    """The first line that a program prints; ``unknown`` where it cannot be run."""
    try:
        done = subprocess.run(argv, cwd=HERE, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]


if __name__ == "__main__":
    sys.exit(main())
