"""Variables and options that other launchers and schedulers leave behind, and those that a worker needs."""
