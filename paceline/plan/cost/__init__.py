"""The cost model: memory, step time, search over layouts, corrections from measured runs. No torch."""
