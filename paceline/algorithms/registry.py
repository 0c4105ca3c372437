"""The algorithms by name."""

from __future__ import annotations

from paceline.core.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "sft": "paceline.algorithms.sft:SFT",
        "reward": "paceline.algorithms.reward:Reward",
        "dpo": "paceline.algorithms.dpo:DPO",
        "grpo": "paceline.algorithms.grpo:GRPO",
        "ppo": "paceline.algorithms.ppo:PPO",
    },
)
