"""What trained models answer: ``evaluate`` and ``generate`` over rows of a file, ``chat``, and ``serve``."""
