"""Paceline: one YAML, any strategy, the same losses. Importing this package imports no torch."""

__version__ = "0.1.0"
__all__ = ["__version__"]
