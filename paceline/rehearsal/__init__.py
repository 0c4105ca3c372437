"""``paceline rehearse``: a run's life in minutes on the real ranks, and what it will cost. No torch."""
