"""Interfaces and types shared by models, data, strategies and algorithms: roles, batches, windows, shards."""
