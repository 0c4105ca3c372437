"""A process's setup before the model: process group, error alarm, device, seeds, heartbeat."""
