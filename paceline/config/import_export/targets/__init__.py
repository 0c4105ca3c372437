"""The programs that a config of ours is exported to, and what each calls our keys."""
