"""Reports of a run: console, event log, trackers, the user's callbacks."""
