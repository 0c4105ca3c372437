"""Diagnostic codes used by several rooms: user-defined classes and functions, remote code, unknown names."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
