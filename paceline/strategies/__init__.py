"""How a model is trained on many devices; ``core.tables`` maps names to strategies."""
