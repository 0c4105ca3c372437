"""Saves of a run, and resumes from them."""
