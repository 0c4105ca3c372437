"""What a process needs before there is a model: the process group, the alarm, the device, seeds, a heartbeat."""
