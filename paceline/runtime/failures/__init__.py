"""How a rank that hangs, dies or is late is found and named on all ranks."""
