"""The training loop: windows, steps, schedules, intervals."""
