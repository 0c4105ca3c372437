"""Peak memory of ``paceline export`` of models larger than 4 GiB.

  OMP_NUM_THREADS=1 python dev/benchmarks/export_memory.py [--cases full,mixture] [--gib 4.2] [--folder /tmp]

Each case is a checkpoint as training writes it (fp32, random values, no moments), made in a temporary folder
beside what it started from, and exported by the command in a process of its own:

    full       a Llama                             merged     an adapter, into its base in bf16
    composite  a Gemma 3 and its carried tower     adapter    the same adapter alone
    mixture    a Qwen 3 MoE; fused experts leave under the names of single ones

Counted is what the process holds itself (RssAnon and RssShmem of /proc, every 10 ms), and, beside it, VmHWM,
which counts pages of mapped files too. Allowed: 2 × the largest tensor + 1 GiB above the interpreter, a bare
``python -c pass``. Ends with 1 where a case needs more. The disk needs 4 times ``--gib`` for a moment.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from large_models import GIB, LLAMA, MIB, WIDE, Source, Values, layers_for, memory_of, write_folder
from torch import Tensor

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.untrained_tensors import carried_state
from paceline.config.schema import Config
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import to_json
from paceline.protocols.model import BuildOptions
from paceline.protocols.shard import Shard

MOE = {
    **WIDE,
    "model_type": "qwen3_moe",
    "intermediate_size": 768,
    "moe_intermediate_size": 768,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "vocab_size": 32000,
}
GEMMA = {**WIDE, "model_type": "gemma3_text", "intermediate_size": 8192, "vocab_size": 32000}
TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
}


class OneRank:
    rank, world_size = 0, 1

    def all_gather_json(self, obj: Any) -> list[Any]:
        return [obj]


def save(run: Path, tensors: Iterator[tuple[str, str, Tensor]], state: dict[str, Any], files: Any) -> int:
    """Save a checkpoint and return the bytes of its largest tensor."""
    shards = [Shard("policy", n, kind, tuple(t.shape), (0,) * t.ndim, t) for kind, n, t in tensors]
    sides = {name: json.dumps(value).encode() for name, value in files.items()}
    Checkpointer(RunDir.at(run), OneRank(), None).save(1, shards, state, sides)
    return max(s.tensor.nbytes for s in shards)


def whole(run: Path, config: dict[str, Any], gib: float) -> int:
    build = HFModelFactory(Source(config=layers_for(config, gib)))
    module = build(BuildOptions(device=torch.device("meta")))
    named = [(n, tuple(p.shape)) for n, p in module.plain_named_parameters()]
    values = Values(max(math.prod(shape) for _, shape in named))
    return save(run, (("param", n, values.of(s)) for n, s in named), {}, {"config.json": build.saved_config})


def adapter(run: Path, gib: float) -> int:
    base = run.parent / "base"
    config = layers_for(LLAMA, gib)
    plain = HFModelFactory(Source(config=config))
    skeleton = plain(BuildOptions(device=torch.device("meta"))).hf
    write_folder(base, skeleton, {**plain.saved_config, "dtype": "bfloat16"})
    spec = AdapterSpec(r=64, alpha=128.0, target_modules=("all-linear",))
    build = HFModelFactory(Source(name_or_path=str(base)), adapter=spec)
    module = build(BuildOptions(device=torch.device("cpu"), by_slices=True))
    assert module.adapter is not None and module.adapter.base["fingerprint"]
    trained = [(n, tuple(p.shape)) for n, p in module.plain_named_parameters() if p.requires_grad]
    values = Values(max(math.prod(shape) for _, shape in trained))
    state = {
        "adapter": to_json(spec),
        "base_model": dict(module.adapter.base),
        "config": Config.from_json({"model": {"name_or_path": str(base)}}).to_json(),
    }
    files = {"config.json": build.saved_config, "adapter_config.json": dict(module.adapter.peft)}
    save(run, (("param", n, values.of(s)) for n, s in trained), state, files)
    return max(4 * p.numel() for p in skeleton.parameters())


def composite(run: Path, gib: float) -> int:
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = layers_for(GEMMA, gib)
    inner = {key: value for key, value in text.items() if key != "model_type"}
    made = AutoConfig.for_model("gemma3", text_config=inner, vision_config=TOWER, mm_tokens_per_image=64)
    with torch.device("meta"):
        skeleton = AutoModelForImageTextToText.from_config(made)
    base = run.parent / "base"
    write_folder(base, skeleton, {**json.loads(made.to_json_string()), "dtype": "bfloat16"})
    build = HFModelFactory(Source(name_or_path=str(base)))
    module = build(BuildOptions(device=torch.device("meta")))
    found = build.account()
    assert found is not None and found.carried
    named = [(n, tuple(p.shape)) for n, p in module.plain_named_parameters()]
    values = Values(max(math.prod(shape) for _, shape in named))
    state = {"carried": carried_state(base, str(base), None, found.carried)}
    return save(
        run, (("param", n, values.of(s)) for n, s in named), state, {"config.json": build.saved_config}
    )


CASES: dict[str, tuple[Callable[[Path, float], int], tuple[str, ...]]] = {
    "full": (lambda run, gib: whole(run, LLAMA, gib), ()),
    "mixture": (lambda run, gib: whole(run, MOE, gib), ()),
    "merged": (adapter, ("--merge",)),
    "adapter": (adapter, ()),
    "composite": (composite, ()),
}


def peak_of(argv: list[str]) -> tuple[int, int, float]:
    """Run a command; return its peaks of own memory and of VmHWM in bytes, and its seconds."""
    began, own, total = time.perf_counter(), 0, 0
    child = subprocess.Popen(argv)
    while child.poll() is None:
        try:
            now, high = memory_of(child.pid)
        except OSError:
            break
        own, total = max(own, now), max(total, high)
        time.sleep(0.01)
    if child.wait() != 0:
        raise SystemExit(f"{' '.join(argv)} ended with {child.returncode}")
    return own, total, time.perf_counter() - began


def measure(name: str, gib: float, folder: Path, dtype: str, bare: int) -> bool:
    """Measure one case; return whether it stayed within what is allowed."""
    make, options = CASES[name]
    scratch = Path(tempfile.mkdtemp(prefix="paceline-export-", dir=folder))
    try:
        largest = make(scratch / "run", gib)
        command = [sys.executable, "-m", "paceline", "export", str(scratch / "run")]
        own, total, seconds = peak_of([*command, "--to", str(scratch / "out"), "--dtype", dtype, *options])
        size = sum(path.stat().st_size for path in (scratch / "out").iterdir())
    finally:
        shutil.rmtree(scratch)
    allowed = 2 * largest + GIB
    row = (f"{name:10}", dtype, f"{size / GIB:.2f} GiB", f"{largest / MIB:.0f} MiB", f"{own / MIB:.0f} MiB")
    limit = f"{(allowed + bare) / MIB:.0f} MiB"
    print(" | ".join([*row, limit, f"{total / MIB:.0f} MiB", f"{seconds:.0f} s"]), flush=True)
    return own - bare <= allowed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--gib", type=float, default=4.2, help="of fp32 weights")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    bare = peak_of([sys.executable, "-c", "import time; time.sleep(0.2)"])[0]
    print("case | dtype | written | largest tensor | own memory | allowed | VmHWM | time")
    within = [measure(name, args.gib, args.folder, args.dtype, bare) for name in args.cases.split(",")]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
