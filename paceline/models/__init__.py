"""Hugging Face models as root modules of roles, built by ``factory``: fused head, packed attention."""
