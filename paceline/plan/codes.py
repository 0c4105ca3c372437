"""Codes of the plan: the needs of a job, its hardware, and its layout."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
