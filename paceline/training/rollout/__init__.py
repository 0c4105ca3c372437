"""Rollouts: the policy answers prompts, rewards score the answers, and optimizer steps train on them."""
