"""Fully sharded data parallel: FSDP2."""
