"""How a model is trained on many devices; ``core.plugins.tables`` maps names to strategies."""
