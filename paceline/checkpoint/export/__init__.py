"""A checkpoint as a Hugging Face folder: whole, adapter, merged, GGUF; pushed to the hub."""
