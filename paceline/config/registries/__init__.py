"""Names that a config may use: optimizers, schedules, metrics, trackers, and their options."""
