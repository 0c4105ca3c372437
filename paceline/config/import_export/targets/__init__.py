"""Export of Paceline configs to other programs, and their names for our keys."""
