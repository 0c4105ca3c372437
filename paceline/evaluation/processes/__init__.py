"""The processes of an evaluation, and the folder with their work."""
