"""DeepSpeed in the plan: spec, JSON config, memory."""
