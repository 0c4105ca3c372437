"""From rows on disk to micro-batches: formats, chat templates, tokenization, packing, and the data order."""
