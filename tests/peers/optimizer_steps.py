#!/usr/bin/env python
"""Write what APOLLO's and Adam-mini's packages make of given gradients: the weights after seven steps.

/opt/envs/llamafactory/bin/python tests/peers/optimizer_steps.py tests/peers/recorded/optimizer_steps.json
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

STEPS, RATE, DECAY, BETAS, EPS = 7, 1e-2, 0.1, (0.8, 0.95), 1e-6
SHAPES = ((12, 7), (6, 9), (8, 8))
#: optim_args of APOLLO, as its package calls them
APOLLO = [
    {
        "rank": 3,
        "update_proj_gap": 3,
        "scale": 4.0,
        "proj": "random",
        "scale_type": kind,
        "scale_front": front,
    }
    for kind, front in itertools.product(("channel", "tensor"), (False, True))
]
#: of a model with two heads of two, one of them of keys and values
NAMED = {
    "model.embed_tokens.weight": (9, 4),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.q_proj.bias": (4,),
    "model.layers.0.self_attn.k_proj.weight": (2, 4),
    "model.layers.0.self_attn.v_proj.weight": (2, 4),
    "model.layers.0.self_attn.o_proj.weight": (4, 4),
    "model.layers.0.mlp.down_proj.weight": (4, 6),
    "model.layers.0.input_layernorm.weight": (4,),
    "lm_head.weight": (9, 4),
}


def values(shape: tuple[int, ...], number: int) -> Any:
    """Return a tensor of this shape that any version of torch makes alike."""
    import torch

    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(count * (1.3 + number) + number).reshape(shape).float()


def stepped(optimizers: list[Any], parameters: list[Any]) -> list[Any]:
    """Return the parameters after the steps."""
    for step in range(STEPS):
        for number, parameter in enumerate(parameters):
            parameter.grad = values(tuple(parameter.shape), step * 7 + number)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.tolist() for parameter in parameters]


def main() -> None:
    """Ask both packages."""
    import torch
    from adam_mini import Adam_mini
    from apollo_torch import APOLLOAdamW

    warnings.simplefilter("ignore")
    found = {}
    for own in APOLLO:
        options = dict(own)
        front = options.pop("scale_front")
        parameters = [torch.nn.Parameter(values(shape, 50)) for shape in SHAPES]
        groups = [{"params": [p], "weight_decay": DECAY, "proj_type": "std", **options} for p in parameters]
        made = [APOLLOAdamW([g], lr=RATE, betas=BETAS, eps=EPS, scale_front=front) for g in groups]
        found[json.dumps(own)] = stepped(made, parameters)
    named = {name: torch.nn.Parameter(values(shape, 50)) for name, shape in NAMED.items()}
    sizes = {"dim": 4, "n_heads": 2, "n_kv_heads": 1}
    mini = Adam_mini(named.items(), RATE, BETAS, EPS, DECAY, verbose=False, **sizes)
    found["adam_mini"] = stepped([mini], list(named.values()))
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
