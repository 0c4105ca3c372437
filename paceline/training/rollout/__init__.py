"""Rollouts: prompts answered by the policy, judged, and made into the windows of the next optimizer steps."""
