"""Tasks of SkyPilot and dstack: a file of theirs, and one script that runs on every node."""
