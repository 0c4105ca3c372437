"""What the pipeline is to the plan: its spec and its stages."""
