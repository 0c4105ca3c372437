"""Which strategy: the size rule, ``auto``, ``fastest``, and what would fit."""
