"""What a config may name: optimizers, schedules, metrics, trackers, and their options."""
