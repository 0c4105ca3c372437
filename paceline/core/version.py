"""The version of this package, for rooms that write it into plans and checkpoints."""

PACKAGE_VERSION = "0.1.0"  # as in pyproject.toml
