"""``paceline checkpoints``: verify, diff, prune, average."""
