"""Diagnostic codes of reading a config: its YAML, its keys, and other systems' files."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
