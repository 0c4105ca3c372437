"""What a run saves and when, and how it goes on from what was saved."""
