"""GGUF beside an exported folder, checked against Transformers' own reader."""
