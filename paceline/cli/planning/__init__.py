"""Verbs that say what would happen: plan, simulate, doctor, explain."""
