"""Codes of findings about nodes."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
