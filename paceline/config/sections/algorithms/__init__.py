"""Options of the algorithms, a model each."""
