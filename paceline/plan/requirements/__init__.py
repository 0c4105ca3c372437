"""Packages, logins and trials that a config needs before it starts."""
