"""What rollouts ask of whoever generates: this process's own model, or a server behind the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class RolloutSampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 leave the distribution whole.

    The log-probability that comes with a token is that of softmax(logits / temperature) over the whole vocabulary (temperature 1 when greedy),
    before top-k and top-p: the policy that is trained is that distribution, and training recomputes exactly this number.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One answer wanted.

    prompt      token ids
    stream      64-bit key of its noise: f(seed, prompt's id, sample number), the same on any rank
    max_tokens  the longest answer, the token that ends it included; 0 gives an empty answer
    """

    prompt: tuple[int, ...]
    stream: int
    max_tokens: int


@dataclass(frozen=True)
class Completion:
    """``tokens`` with the one that ended it; ``logprobs`` fp32 (fp64 for a fp64 model) [len(tokens)]; ``ended``: by a stop token, not by its length."""

    tokens: tuple[int, ...]
    logprobs: Tensor
    ended: bool


class Engine(Protocol):
    """Answers requests in their order. Collective where the model is shared by ranks: every rank calls it, if need be with no request."""

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]: ...
