"""A window: the micro-batches of one optimizer step, run through a strategy, weighed and summed over the ranks."""
