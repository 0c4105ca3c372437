"""Models whose layers pass a state from token to token: packed rows beside padded rows of about one length,
real tokens a second of CPU time, paired in one process.

    OMP_NUM_THREADS=1 python dev/benchmarks/states.py [qwen3_5_text] [--rounds 3]

56 documents of 16 to 512 tokens whose mean is 0.28 of the longest, fp32, forward and backward, 2,048 tokens a
micro-batch: packed in the order of the data, and, on the other side, sorted by length, as many rows as
padding leaves room for (Paceline's padded path with Transformers' sdpa). The ratio is that of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from paceline.models.factory import HFModelFactory
from paceline.models.loading.list_parameters import ClassRequest
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output

TOKENS, VOCAB, LONGEST = 2048, 2048, 512
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 768,
    "vocab_size": VOCAB,
    "max_position_embeddings": TOKENS,
    "pad_token_id": 0,
}
STATES = ["linear_attention"] * 3 + ["full_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "head_dim": 64,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "layer_types": STATES,
    },
}


def batch_of(lengths: Sequence[int], generator: torch.Generator) -> Batch:
    """Random documents, every token labelled but the first of each."""
    ids = torch.randint(3, VOCAB, (1, sum(lengths)), generator=generator)
    ends = torch.tensor(lengths).cumsum(0)
    labels = torch.cat([ids[:, 1:], ids.new_full((1, 1), IGNORE_INDEX)], dim=1)
    labels[0, ends - 1] = IGNORE_INDEX
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), ends]).int()
    return Batch(ids, labels, positions, bounds, max(lengths), torch.arange(len(lengths)), len(lengths))


def packed(lengths: Sequence[int]) -> list[list[int]]:
    """Return micro-batches by first fit."""
    found: list[list[int]] = []
    for length in lengths:
        room = next((one for one in found if sum(one) + length <= TOKENS), None)
        if room is None:
            found.append(room := [])
        room.append(length)
    return found


def grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Return micro-batches of about one length, padding counted."""
    found: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        if not found or (len(found[-1]) + 1) * found[-1][0] > TOKENS:
            found.append([])
        found[-1].append(length)
    return found


def seconds(module: nn.Module, batches: Sequence[Batch]) -> float:
    """CPU seconds of forward and backward of all micro-batches."""
    module.zero_grad()
    start = time.process_time()
    for batch in batches:
        module(batch, frozenset({Output.NLL}))["nll"].backward()
    return time.process_time() - start


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=MODELS, default="qwen3_5_text")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(56).exponential_(1 / 150.0, generator=generator)
    lengths = [LONGEST, *drawn.clamp(16, LONGEST).int().tolist()[1:]]
    source = ClassRequest(config={"model_type": args.kind, **SIZES, **MODELS[args.kind]})
    sides = [
        (HFModelFactory(source, attention=name)().train(), [batch_of(b, generator) for b in split(lengths)])
        for name, split in (("auto", packed), ("sdpa", grouped))
    ]
    assert [module.attention.layout for module, _ in sides] == ["packed", "padded"]
    for module, batches in sides:
        seconds(module, batches[:1])
    found = [[seconds(*side) for side in sides] for _ in range(args.rounds)]
    own, other = (statistics.median(times) for times in zip(*found, strict=True))
    count, rates = sum(lengths), [f"{sum(lengths) / own:,.0f}", f"{sum(lengths) / other:,.0f}"]
    print(f"{len(lengths)} documents, mean length {count / len(lengths) / LONGEST:.2f} of the longest")
    print(f"{args.kind}: packed {rates[0]} tokens/s, padded {rates[1]}: {other / own:.2f} x")


if __name__ == "__main__":
    main()
