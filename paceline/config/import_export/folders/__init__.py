"""Folders as people have them: which file starts what, the jobs that they form, and what becomes of each."""
