"""Profiles of single steps: recorded by torch's profiler, summarised by kind of layer, in words."""
