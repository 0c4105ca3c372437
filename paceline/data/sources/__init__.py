"""Where rows come from: files, folders, hub data sets, the user's own functions."""
