"""Whole folders of configs and scripts: what starts each training, and the Paceline job for it."""
