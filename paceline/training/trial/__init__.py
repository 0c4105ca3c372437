"""What only an import can tell about a job, tried in a process of its own before a start."""
