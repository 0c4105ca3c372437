"""ms-swift's configs."""
