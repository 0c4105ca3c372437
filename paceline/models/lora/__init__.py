"""LoRA adapters: where they sit, how they begin, and experts."""
