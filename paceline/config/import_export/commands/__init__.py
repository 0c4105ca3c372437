"""Command lines and shell scripts: the launchers on them, and their programs."""
