"""What a run tells: console, event log, the user's callbacks."""
