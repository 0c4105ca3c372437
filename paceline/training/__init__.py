"""The training loop and the composition root: windows in, events and checkpoints out."""
