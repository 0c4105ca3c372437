"""GGUF next to an exported folder, checked against Transformers' own reader."""
