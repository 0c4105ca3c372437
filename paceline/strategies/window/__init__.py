"""A window: the micro-batches of one optimizer step, run, weighed and summed over the ranks."""
