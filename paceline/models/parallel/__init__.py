"""One model over several ranks: tensor parallelism and pipeline stages."""
