"""Preparing rows with pictures against Pillow's decoding alone: 20,000 JPEGs of 224 x 224 over the cores.

    python dev/benchmarks/image_rows.py [ROWS]

Prints wall and CPU seconds of both, and the memory of the process that writes. CPU seconds are what a machine
with other work on it still measures.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit/data"), str(ROOT / "tests")]


def decode(files: list[str]) -> int:
    """Decode files as RGB with Pillow alone; return the pixels."""
    from PIL import Image

    pixels = 0
    for file in files:
        with Image.open(file) as image:
            image.load()
            pixels += image.width * image.height
    return pixels


def write_rows(folder: Path, count: int) -> None:
    """Write ``count`` rows that name a JPEG each; pictures with structure, of 20 to 40 KB."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    with (folder / "rows.jsonl").open("w") as rows:
        for number in range(count):
            small = rng.integers(0, 256, (56, 56, 3), np.uint8)
            image = Image.fromarray(small).resize((224, 224), Image.Resampling.BICUBIC)
            name = f"pictures/{number:05d}.jpg"
            image.save(folder / name, quality=90)
            turns = [
                {"role": "user", "content": f"<image>\nWhat is in picture {number}? Answer in one sentence."},
                {"role": "assistant", "content": "It shows coloured squares that run into each other."},
            ]
            rows.write(json.dumps({"messages": turns, "images": [name]}) + "\n")


def measured(run) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Return (wall seconds, CPU seconds of this process and its children)."""

    def spent() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    wall, cpu = time.perf_counter(), spent()
    run()
    return time.perf_counter() - wall, spent() - cpu


def main() -> None:
    from image_judges import image_folder
    from image_rows import MARKS, TEMPLATE

    from paceline.config.schema import Config
    from paceline.data.prepare.prepare import prepare

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_rows(folder, count)
        model, _ = image_folder("qwen2_vl", folder / "model")
        (model / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", MARKS["qwen2_vl"]))
        files = sorted(map(str, (folder / "pictures").iterdir()))
        parts = [files[n::cores] for n in range(cores)]

        def alone() -> None:
            with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
                list(pool.map(decode, parts))

        data = {"train": [{"path": str(folder / "rows.jsonl")}]}
        config = Config.from_json({"model": {"name_or_path": str(model), "vision": True}, "data": data})

        def whole() -> None:
            prepare(config.data, config.model, seed=0, cache_dir=folder / "cache")

        print(f"{count:,} rows, {cores} cores, load {os.getloadavg()[0]:.1f}")
        for name, run in (("Pillow alone", alone), ("preparing", whole), ("Pillow alone", alone)):
            wall, cpu = measured(run)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{name:<14} {wall:7.1f} s wall  {cpu:7.1f} s CPU  {memory:6.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
