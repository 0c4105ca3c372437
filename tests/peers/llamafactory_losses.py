#!/usr/bin/env python
"""Write LLaMA-Factory 0.9.5's EAFT and ASFT losses of given logits.

    /opt/envs/llamafactory/bin/python tests/peers/llamafactory_losses.py OUT

EAFT takes the entropy of the 20 likeliest of these 64 tokens.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock


def main() -> None:
    """Ask its functions."""
    import torch

    for name in ("galore_torch", "apollo_torch", "badam"):
        sys.modules[name] = mock.MagicMock(__spec__=ModuleSpec(name, None))  # of optimizers beside the losses
    from llamafactory.train.trainer_utils import asft_loss_func, eaft_loss_func

    torch.manual_seed(3)
    logits, reference = torch.randn(12, 64).round(decimals=3), torch.randn(12, 64).round(decimals=3)
    labels = torch.randint(64, (12,))
    outputs, targets = {"logits": logits[None]}, labels[None]
    losses = {f"eaft {alpha}": eaft_loss_func(outputs, targets, None, alpha).item() for alpha in (1.0, 2.0)}
    losses["asft 0.1"] = asft_loss_func(outputs, targets, reference[None], 0.1).item()
    # the label of a position is the next token
    given = {
        "logits": logits[:-1].tolist(),
        "reference": reference[:-1].tolist(),
        "labels": labels[1:].tolist(),
    }
    Path(sys.argv[1]).write_text(json.dumps({**given, "losses": losses}) + "\n")


if __name__ == "__main__":
    main()
