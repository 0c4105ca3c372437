"""Isolation of untrusted programs. Standard library only: the server starts fast and holds no secrets."""
