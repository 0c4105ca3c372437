"""How fast the page is over long histories: seconds and memory of `paceline watch`, asked as by a browser.

    python dev/benchmarks/page_speed.py [--ranks 1024 --steps 1000] [--long 1000000]

Writes two run folders (one of many ranks, one of many steps), starts the server on them in a process of its
own, and prints the seconds until the page's files, the index and a curve are there, cold and warm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from paceline.core.rundir import RunDir

PLAIN = argparse.RawDescriptionHelpFormatter
FILES = ("", "static/page.css", "static/texts.js", "static/format.js", "static/source.js", "static/chart.js",
         "static/curves.js", "static/views.js", "static/page.js", "api/runs")  # fmt: skip


def write_run(root: Path, ranks: int, steps: int) -> None:
    """Write a run whose ranks have reported ``steps`` steps with the fields of a real step."""
    run = RunDir.at(root)
    run.events_dir.mkdir(parents=True)
    plan = {"algorithm": "sft", "strategy": "fsdp", "world_size": ranks, "decisions": []}
    run.plan_json.write_text(json.dumps(plan))
    for rank in range(ranks):
        with run.events(rank).open("w") as file:
            begun = {"kind": "run_started", "plan_digest": "d", "world_size": ranks, "start_step": 0}
            file.write(line(0, rank, {**begun, "total_steps": steps}))
            file.writelines(line(n, rank, step(n)) for n in range(1, steps + 1))


def step(n: int) -> dict[str, Any]:
    """Return a step's event as a training writes it."""
    loss = 2.0 + 8.0 / (1 + n / 100) + 0.01 * (n % 7)
    return {
        "kind": "step", "step": n, "epoch": round(n / 1000, 6), "loss": loss, "losses": {"lm": loss},
        "weights": {"lm": 16384}, "lr": 1e-4, "grad_norm": 0.5 + 0.01 * (n % 5), "tokens": 16384,
        "step_seconds": 1.0, "tokens_per_second": 16384.0, "mfu": 0.41, "memory_bytes": 10**9 + n % 1000,
        "skipped": None, "sample_digest": "0123456789abcdef", "extras": {},
    }  # fmt: skip


def line(n: int, rank: int, event: dict[str, Any]) -> str:
    return json.dumps({"time": 1e9 + n, "rank": rank, **event}, separators=(",", ":")) + "\n"


def memory_of(pid: int) -> float:
    """Return the most memory that a process has held, MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else float("nan")


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process, which other programs beside it do not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(browser: OpenerDirector, address: str) -> tuple[float, bytes]:
    begun = time.perf_counter()
    with browser.open(address) as answer:
        content = answer.read()
    return time.perf_counter() - begun, content


def measure(runs: Path, cache: Path, label: str) -> None:
    """Start the page on ``runs`` and print what each part of a first look costs."""
    command = [sys.executable, "-m", "paceline", "watch", str(runs)]
    environment = {"XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin", "HOME": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        found = None
        while found is None:
            found = re.search(r"(http://[^/]+/)\?token=\S+", server.stdout.readline())
        browser = build_opener(HTTPCookieProcessor(CookieJar()))
        seconds, _ = ask(browser, found[0])
        seconds += sum(ask(browser, found[1] + name)[0] for name in FILES)
        run = json.loads(ask(browser, found[1] + "api/runs")[1])["runs"][0]["id"]
        before, begun, answers, longest = memory_of(server.pid), time.perf_counter(), 0, 0.0
        used, share = cpu_seconds(server.pid), 0.0
        while share < 1:
            each, content = ask(browser, f"{found[1]}api/runs/{run}")
            share, answers, longest = json.loads(content)["indexed"], answers + 1, max(longest, each)
        index, used = time.perf_counter() - begun, cpu_seconds(server.pid) - used
        query = "&".join(
            f"name={name}" for name in ("steps/loss", "steps/lr", "steps/grad_norm", "peaks/memory")
        )
        curve, _ = ask(browser, f"{found[1]}api/runs/{run}/series?{query}&buckets=900")
        print(
            f"{label:34} shell {seconds:5.2f} s   index {index:6.2f} s ({used:.2f} of processor),"
            f" {answers} answers, the longest {longest:.2f} s   four curves {curve:.3f} s  "
            f" memory {memory_of(server.pid):.0f} MiB ({before:.0f} before)",
            flush=True,
        )
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--long", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-page-") as folder:
        root = Path(folder)
        for ranks, steps in ((options.ranks, options.steps), (1, options.long)):
            label, runs = f"{ranks:,} ranks x {steps:,} steps", root / f"{ranks}"
            write_run(runs / "run", ranks, steps)
            measure(runs, root / f"cache{ranks}", f"{label}, first")
            measure(runs, root / f"cache{ranks}", f"{label}, again")


if __name__ == "__main__":
    main()
