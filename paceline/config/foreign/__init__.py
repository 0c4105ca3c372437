"""Other systems' configuration files, read as the lowest layer."""
