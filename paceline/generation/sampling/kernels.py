"""The kernels as torch operators ``paceline::…``: Triton on a device, ``reference`` on a CPU, only shapes on
meta tensors. One trial per device decides whether they are used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.generation.sampling import launch, reference
from paceline.runtime.device.device import device_capability, triton_missing

CAPABILITY = 7.0  # what the kernels are compiled for in tests, and later
_LIBRARY = torch.library.Library("paceline", "FRAGMENT")  # type: ignore[no-untyped-call]


def nucleus(logits: Tensor, top_k: int, top_p: float, temperature: float) -> Tensor:
    """Return the bounds of top-k, then top-p, on softmax(logits / temperature), [B, V]. The result is int64
    [B, 2]: the least kept logit, as an integer in the order of fp32, and the last kept column with that
    logit.

    ``top_k`` at least V, ``top_p`` 1: not used. As ``sampling.keep_likeliest``, but probabilities are added
    as integers: a token within 2^-40 of the bound may fall on the other side.
    """
    return torch.ops.paceline.nucleus(logits, top_k, top_p, temperature)  # type: ignore[no-any-return]


def draw(
    logits: Tensor, bounds: Tensor | None, streams: Tensor, places: Tensor, temperature: float, sampled: bool
) -> tuple[Tensor, Tensor]:
    """Return (tokens int64 [B], log-probabilities of softmax(logits / temperature) fp32 [B]).

    The token is the first of the largest logits / temperature + Gumbel noise (without noise if not
    ``sampled``) within ``bounds``. ``streams`` and ``places``, int64 [B], as in ``noise.gumbel``.
    """
    drawn: tuple[Tensor, Tensor]
    drawn = torch.ops.paceline.draw(logits, bounds, streams, places, temperature, sampled)
    return drawn


for _schema, _on_device, _on_cpu, _shapes in (
    (
        "nucleus(Tensor logits, int top_k, float top_p, float temperature) -> Tensor",
        launch.nucleus,
        reference.nucleus,
        lambda logits, *_: logits.new_empty(logits.shape[0], 2, dtype=torch.int64),
    ),
    (
        "draw(Tensor logits, Tensor? bounds, Tensor streams, Tensor places, float temperature, bool sampled)"
        " -> (Tensor, Tensor)",
        launch.draw,
        reference.draw,
        lambda logits, bounds, streams, *_: (
            streams.new_empty(len(logits)),
            logits.new_empty(len(logits), dtype=torch.float32),
        ),
    ),
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
    for _key, _function in (("CUDA", _on_device), ("CPU", _on_cpu), ("Meta", _shapes)):
        _LIBRARY.impl(_schema.partition("(")[0], _function, _key)  # type: ignore[no-untyped-call]


def why_no_kernels(device: torch.device) -> str | None:
    """Return why sampling on ``device`` takes torch's operations in place of Triton kernels, or None."""
    capability = device_capability(device)
    if capability is None:
        return f"there are none for {device.type}"
    if capability < CAPABILITY:
        return f"they need compute capability {CAPABILITY}"
    if missing := triton_missing(device):
        return missing
    try:
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        logits = torch.zeros(1, 8, device=device)
        draw(logits, nucleus(logits, 4, 0.5, 1.0), zeros, zeros, 1.0, True)
    except Exception as error:  # noqa: BLE001  (of a compiler, a linker, a driver: torch's operations sample)
        return f"the first one failed: {type(error).__name__}: {error}"[:200]
    return None
