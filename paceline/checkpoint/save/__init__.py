"""Write a checkpoint: staged by all ranks, renamed into view, old ones removed."""
