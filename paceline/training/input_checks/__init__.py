"""Questions about a run's inputs that need no torch: classes, prompts, the teacher's tokens."""
