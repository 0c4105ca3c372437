"""The composition root: from a plan to models, algorithm, windows and the trainer."""
