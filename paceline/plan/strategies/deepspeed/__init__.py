"""What DeepSpeed is to the plan: its spec, its JSON, its bytes."""
