"""Codes of what a look at the machine finds."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
