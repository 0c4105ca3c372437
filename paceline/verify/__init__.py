"""Whether a strategy computes what a reference computes: what is run, and the verdict. No torch."""
