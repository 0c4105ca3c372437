"""FSDP2 (``fully_shard``) in the plan: spec and options."""
