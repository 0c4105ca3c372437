"""The words that models, data, strategies and algorithms share: roles, batches, windows, handles, shards. No logic of its own."""
