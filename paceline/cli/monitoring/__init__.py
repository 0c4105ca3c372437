"""Verbs that show runs."""
