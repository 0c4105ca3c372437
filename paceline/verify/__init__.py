"""Compare a strategy's training with a reference's: the configs to run, and the verdict. No torch."""
