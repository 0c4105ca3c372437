"""``paceline evaluate`` and ``paceline generate``: losses and answers of models over the rows of a file."""
