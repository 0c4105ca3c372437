"""The demo: train a small model from scratch on questions with checkable answers. No torch."""
