"""Diagnostic codes that strategies raise on a rank."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
