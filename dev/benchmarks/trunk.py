"""Forward and backward of one rank: tokens/s and MFU of the root module, fp32 and bf16.

    OMP_NUM_THREADS=1 python dev/benchmarks/trunk.py [--dtype float32|bfloat16] [--micro-batch 4] [--window 2]
    [--steps 4] [--profile] [--optimizer]

The model is the 56 M Llama of the speed targets (hidden 512, 8 layers, 8 heads, 4 key heads, intermediate
1,408, vocab 32,000); documents have lengths spread like Alpaca's (mean about 110), packed into rows of 512,
every token labelled. MFU is 6 · 40.0 M · tokens over the rate of a 2048³ matrix product measured between the
steps; all times are CPU time of this one-thread process, so that they hold on a shared machine.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import torch

from paceline.models.factory import HFModelFactory
from paceline.models.loading.list_parameters import ClassRequest
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output
from paceline.runtime.device.host import configure_malloc

MATMUL_PARAMETERS = 8 * (512 * 512 * 2 + 512 * 256 * 2 + 3 * 512 * 1408) + 512 * 32000
LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def make_batch(rows: int, seed: int, seq_len: int = 512) -> Batch:
    """``rows`` rows of log-normal documents, end to end; like a packer's, a row is nearly full."""
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    for _ in range(rows):
        left = seq_len
        while left > 8:
            length = int(torch.empty(1).log_normal_(4.5, 0.65, generator=generator).item())
            length = min(max(length, 8), left)
            lengths.append(length)
            left -= length
    total = sum(lengths)
    ids = torch.randint(3, 32000, (1, total), generator=generator)
    labels = torch.cat([ids[:, 1:], ids.new_full((1, 1), IGNORE_INDEX)], dim=1)
    ends = torch.tensor(lengths).cumsum(0)
    labels[0, ends - 1] = IGNORE_INDEX
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), ends]).int()
    return Batch(ids, labels, positions, bounds, max(lengths), torch.arange(len(lengths)), rows)


def matmul_rate(dtype: torch.dtype) -> float:
    """FLOP/s of one 2048³ product."""
    a = torch.randn(2048, 2048).to(dtype)
    start = time.process_time()
    torch.mm(a, a)
    return 2 * 2048**3 / (time.process_time() - start)


def peak_bytes() -> int:
    """VmHWM of this process."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Prints one line a step and the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--keep-heap", action="store_true")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    if args.keep_heap:
        configure_malloc()
    module = HFModelFactory(ClassRequest(LLAMA), compute_dtype=dtype, attention=args.attention)().train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True) if args.optimizer else None
    rates, fractions = [], []
    rate = matmul_rate(dtype)
    profiler = torch.profiler.profile(record_shapes=True) if args.profile else None
    for step in range(args.steps + 1):
        batches = [make_batch(args.micro_batch, 100 * step + i) for i in range(args.window)]
        if profiler is not None and step == args.steps:
            profiler.start()
        start = time.process_time()
        for batch in batches:
            (module(batch, frozenset({Output.NLL}))["nll"] / 1000).backward()
        if optimizer is not None:
            optimizer.step()
            module.refresh_compute_weights()
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        seconds = time.process_time() - start
        if profiler is not None and step == args.steps:
            profiler.stop()
        after = matmul_rate(dtype)
        tokens = sum(b.num_tokens for b in batches)
        rates.append(tokens / seconds)
        fractions.append(6 * MATMUL_PARAMETERS * tokens / seconds / (0.5 * (rate + after)))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(
            f"step {step}: {usage.ru_minflt} faults, system {usage.ru_stime:.1f} s; {tokens} tokens,"
            f" {tokens / seconds:7.1f} tok/s, MFU {fractions[-1]:.3f} of {0.5e-9 * (rate + after):.0f}"
            " GFLOP/s"
        )
        rate = after
    median = statistics.median(rates[1:]), statistics.median(fractions[1:])
    print(
        f"{args.dtype}: median {median[0]:.1f} tok/s, MFU {median[1]:.3f}, VmHWM"
        f" {peak_bytes() / 2**30:.2f} GiB"
    )
    if profiler is not None:
        print(
            profiler.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=28, max_name_column_width=60
            )
        )


if __name__ == "__main__":
    main()
