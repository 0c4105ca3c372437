"""What a process needs before it has a model: process group, error alarm, device, seeds, heartbeat."""
