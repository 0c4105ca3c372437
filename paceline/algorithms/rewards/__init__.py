"""Rewards of answers: built-in functions by name, users' own by ``module:function``, weighted and summed."""
