"""TRL's configs."""
