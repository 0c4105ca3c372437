"""Use of trained models: ``evaluate`` and ``generate`` over rows of a file, ``chat``, and ``serve``."""
