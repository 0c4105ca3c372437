"""Codes of data: files, rows, templates, tokenizers, what is stored."""

from __future__ import annotations

from paceline.core.diagnostics import codes_beside

__getattr__ = codes_beside(__file__)
