"""From layers (defaults, files, overrides) to one config, with the source of each value."""
