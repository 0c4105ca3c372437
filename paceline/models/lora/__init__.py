"""LoRA adapters: their layers, initial values, and adapters on experts."""
