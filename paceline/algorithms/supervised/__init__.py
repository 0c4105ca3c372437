"""SFT, classification and distillation: losses on given texts."""
