"""The command line: one thin file a verb, loaded when called. No torch here: what needs it is started as ``python -m paceline.…``."""
