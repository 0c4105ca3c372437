"""Verbs for configs and their data."""
