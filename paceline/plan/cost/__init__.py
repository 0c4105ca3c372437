"""What a job costs: the bytes of a rank, the time of a step, the search over layouts, and what was measured. No torch."""
