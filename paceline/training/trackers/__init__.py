"""Trackers: each in a thread of its own, so that none can delay or hang a training."""
