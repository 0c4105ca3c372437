"""Layers in fewer bits: 4-bit, 8-bit floating point, and what keeps fp32 weights in a 16-bit model."""
