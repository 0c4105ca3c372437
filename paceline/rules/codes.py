"""Diagnostic codes of the rules: unsupported combinations, settings without effect, what a start needs."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
