"""Newer flash kernels in the place of torch's own, for the whole process."""

from __future__ import annotations

from paceline.plan.model.kernels import LABELS


def activate_flash(version: str) -> str:
    """Let torch call this implementation (``flash_version``) from now on; empty: change nothing.

    Returns what is to be said of it, empty for nothing. A package that cannot be imported leaves torch's own
    kernel in place.
    """
    if not version:
        return ""
    from torch.nn.attention import activate_flash_attention_impl

    try:
        activate_flash_attention_impl(version)
    except (
        ImportError,
        RuntimeError,
        OSError,
        AttributeError,
        ValueError,
    ) as exc:  # a build for another torch
        return f"{LABELS[version]} cannot be used, torch's own flash kernel runs: {exc}"
    return f"{LABELS[version]} is in place of torch's own flash kernel"


def active_flash() -> str:
    """Return the implementation that torch calls; empty for its own."""
    from torch.nn.attention import current_flash_attention_impl

    return current_flash_attention_impl() or ""
