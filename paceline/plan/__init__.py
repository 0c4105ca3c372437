"""Plans: computed from config and hardware by pure functions, with a reason for each decision. No torch."""
