"""What strategy and algorithm specs see of a job, and the user's own specs."""
