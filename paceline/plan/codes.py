"""Codes of the plan: what a job needs, what its hardware has, how it is split."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
