"""Jobs on a Ray cluster: a driver that places one launcher on each node, and answers with the run's code."""
