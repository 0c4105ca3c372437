"""Find a checkpoint, verify it, and read what is wanted of it."""
