"""The demo: a small model trained from scratch on questions whose answers a program can check. Imports no torch: it starts `paceline` verbs."""
