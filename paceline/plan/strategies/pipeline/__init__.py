"""Pipeline parallelism in the plan: spec and stages."""
