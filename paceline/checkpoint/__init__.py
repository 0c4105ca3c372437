"""Checkpoints: published, never written in place; safetensors and JSON only, verified before anything is
parsed.
"""
