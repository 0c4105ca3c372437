"""The only contract between a run and its observers: typed events in append-only JSON lines, and plain
text logs.
"""
