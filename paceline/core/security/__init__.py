"""Secrets, file permissions, limits for untrusted code, and code that is shipped with models."""
