"""Find a rank that hangs, dies or is late, and name it on all ranks."""
