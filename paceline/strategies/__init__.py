"""How one model is trained on many devices; a strategy is found by name in ``core.tables``."""
