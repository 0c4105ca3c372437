"""Policy gradients on answers of the model itself: GRPO, PPO, RLOO, REINFORCE++."""
