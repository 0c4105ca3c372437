"""What to rent for a job: cards by goal, deadline and budget, from a dated list of prices."""
