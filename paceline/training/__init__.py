"""The loop and the composition root: windows in, events and checkpoints out."""
