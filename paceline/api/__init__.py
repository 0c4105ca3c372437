"""The library behind ``import paceline``: the verbs of the command line as functions that return values."""
