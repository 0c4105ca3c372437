"""Rows on disk to micro-batches: formats, templates, preparation, packing and the arithmetic order."""
