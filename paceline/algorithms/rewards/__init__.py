"""How good an answer is: built-in functions by name, the user's own by ``module:function``, weighed and summed."""
