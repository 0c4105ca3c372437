"""Decisions of the plan by feature: attention, precision, LoRA, optimizer, rollouts."""
