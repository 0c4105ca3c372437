"""Trials in a process of their own before a start: checks that import libraries or the user's code."""
