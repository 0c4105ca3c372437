"""What a run tells: console, event log, trackers, the user's callbacks."""
