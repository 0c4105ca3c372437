"""Accelerate's config file and environment."""
