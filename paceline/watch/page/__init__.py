"""The page of runs: live (``paceline watch``), or one run as a file (``paceline report``)."""
