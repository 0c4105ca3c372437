"""The terms of a rank's peak, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Peak:
    """Peak bytes of one rank, by term."""

    parameters: float = 0.0
    gradients: float = 0.0  # those that exist at the peak
    optimizer: float = 0.0
    attention: float = 0.0  # activations saved for the backward: projections, attention and its norm
    mlp: float = 0.0  # the same for the MLP and its norm
    checkpoints: float = 0.0  # inputs of recomputed layers, and the one layer being recomputed
    images: float = 0.0  # pixels, and what tower and projector keep of them
    logits: float = 0.0  # logits and loss
    gathered: float = 0.0  # gathered weights, buckets, sequence shards gathered under tp
    others: float = 0.0  # models other than the main one: reference, reward, value
    fragments: float = 0.0
    overhead: float = 0.0  # CUDA context and communicators

    @property
    def total(self) -> float:
        """Sum of all terms."""
        states = self.parameters + self.gradients + self.optimizer + self.others
        moving = self.attention + self.mlp + self.checkpoints + self.images + self.logits + self.gathered
        return states + moving + self.fragments + self.overhead

    def to_json(self) -> dict[str, int]:
        """Return rounded bytes by term, those of images where there are any."""
        return {f.name: round(v) for f in fields(self) if (v := getattr(self, f.name)) or f.name != "images"}
