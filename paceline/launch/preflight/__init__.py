"""Checks before a launch: machine, rules, plan, files, and trial imports. No torch."""
