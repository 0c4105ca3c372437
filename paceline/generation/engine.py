"""The interface between rollouts and a generation engine: the local model, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class RolloutSampling:
    """How tokens are sampled: ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 do not truncate.

    A token's log-probability is that of softmax(logits / temperature) over the full vocabulary (temperature 1
    if greedy), before top-k and top-p. This is the distribution of the trained policy, and training
    recomputes exactly this number.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One answer to generate.

    prompt      token ids
    stream      64-bit key of its noise: f(seed, prompt's id, sample number), equal on all ranks
    max_tokens  maximum length of the answer, its stop token included; 0 gives an empty answer
    """

    prompt: tuple[int, ...]
    stream: int
    max_tokens: int


@dataclass(frozen=True)
class Completion:
    """A generated answer: ``tokens`` with the stop token.

    ``logprobs`` [len(tokens)], fp32 (fp64 for a fp64 model).

    ``ended``: by a stop token, not by its maximum length.
    """

    tokens: tuple[int, ...]
    logprobs: Tensor
    ended: bool


class GenerationEngine(Protocol):
    """Answer requests, in their order.

    Collective if ranks share the model: every rank calls it, even without requests.
    """

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]: ...
