"""Find a checkpoint, verify it, and read tensors from it."""
