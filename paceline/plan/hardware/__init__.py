"""What a job runs on: this machine, looked at, or hardware by name."""
