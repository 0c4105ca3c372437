"""What fully_shard is to the plan: its spec and its options."""
