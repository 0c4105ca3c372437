"""The sampling kernels in Triton's interpreter against their reference.

A program of its own, as Triton reads TRITON_INTERPRET=1 when it is imported: prints a line a case, with what
differs. ``all``: every cut in every dtype, else each cut in one of them.
"""

from __future__ import annotations

import sys
from itertools import product

import torch

from paceline.generation.sampling import launch, reference
from paceline.generation.sampling.noise import stream_of

CUTS = (
    (0, 1.0, 1.0),
    (5, 1.0, 0.7),
    (0, 0.9, 1.0),
    (40, 0.5, 1.3),
    (1, 0.1, 1.0),
)  # top-k, top-p, temperature


def main() -> None:
    """Print all cases."""
    launch.BLOCK, launch.COLUMNS = 64, 64  # several blocks and parts of a row of few words
    shapes = ((torch.float32, (2, 131)), (torch.bfloat16, (3, 50)), (torch.float16, (1, 64)))
    for place, (dtype, (rows, words)) in enumerate(shapes):
        torch.manual_seed(rows)
        logits = (torch.randn(rows, words) * 3).to(dtype)
        logits[:, ::7] = logits[:, :1]  # ties
        logits[0, 5], logits[0, 6], logits[-1, 8] = 0.0, -0.0, -torch.inf
        streams = torch.tensor([stream_of(1, i) for i in range(rows)])
        places = torch.arange(rows) if words % 2 else torch.tensor([4]).expand(rows)  # of stride 0
        for top_k, top_p, temperature in CUTS if sys.argv[1:] == ["all"] else CUTS[place :: len(shapes)]:
            name = f"{str(dtype)[6:]} {rows}x{words} {top_k} {top_p} {temperature}"
            given = logits, top_k or words, top_p, temperature
            bounds = reference.nucleus(*given)
            print(f"{name} bounds", int((launch.nucleus(*given) != bounds).sum()))
            for sampled, cut in product((False, True), (None, bounds)):
                drawn = logits, cut, streams, places, temperature, sampled
                (tokens, logprobs), (same, exact) = launch.draw(*drawn), reference.draw(*drawn)
                print(f"{name} {sampled} {cut is not None} tokens", int((tokens != same).sum()))
                print(f"{name} logprobs", int((logprobs - exact).abs().max() > 4e-6))


if __name__ == "__main__":
    main()
